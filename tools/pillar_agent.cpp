// pillar-agent: the storage node's side. Owns every change to LVM and to the NVMe target of its host.

#include "tools/agent_service.hpp"

namespace {

using namespace pillar;

struct Flags {
  std::string config = "/etc/pillar-csi/agent.yaml";
  agent::AgentConfig settings;
};

Result<std::unique_ptr<tools::Service>> start(const Flags& flags, const runtime::Services& services) {
  auto config = agent::load_config(flags.config, flags.settings);
  if (!config) return tl::unexpected(config.error());
  agent::AgentParts parts;
  parts.services = services;
  parts.host = agent::make_real_host(*config, services);
  auto app = agent::AgentApp::start(std::move(*config), std::move(parts));
  if (!app) return tl::unexpected(app.error());
  return std::make_unique<tools::AgentService>(std::move(*app), services);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  tools::Program program;
  program.name = "pillar-agent";
  program.description = "Serves the LVM volumes of this storage node over NVMe-oF/TCP";
  program.default_listen = "tcp://0.0.0.0:9500";
  program.default_metrics = "0.0.0.0:9501";
  program.add_flags = [&flags](CLI::App& cli) {
    cli.add_option("--config", flags.config, "configuration file (YAML), see docs/interfaces.md section 5")
        ->capture_default_str();
    cli.add_option("--state-dir", flags.settings.state_dir, "folder of marks and export records")
        ->capture_default_str();
    cli.add_option("--configfs-root", flags.settings.configfs_root, "where configfs is mounted")
        ->capture_default_str();
    cli.add_option("--sysfs-root", flags.settings.sysfs_root, "where sysfs is mounted")
        ->capture_default_str();
    cli.add_option("--dev-root", flags.settings.dev_root, "where devices are")->capture_default_str();
    cli.add_option("--proc-root", flags.settings.proc_root, "where procfs is mounted")->capture_default_str();
  };
  program.start = [&flags](const tools::Start& with) { return start(flags, with.services); };
  return tools::run_program(argc, argv, program);
}
