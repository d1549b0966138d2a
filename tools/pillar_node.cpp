// pillar-node: CSI Identity and Node services of one worker: connect, format, mount.

#include <unistd.h>

#include <array>

#include "tools/node_service.hpp"

namespace {

using namespace pillar;

struct Flags {
  node::NodeConfig config;
  hostio::HostIdentityPaths identity;
  std::string registration_dir;
};

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

Result<std::unique_ptr<tools::Service>> start(const Flags& flags, const tools::Start& with) {
  std::unique_ptr<tools::KubeletRegistration> registration;
  if (!flags.registration_dir.empty()) {
    auto made = tools::KubeletRegistration::make(flags.registration_dir, with.listen, with.services);
    if (!made) return tl::unexpected(made.error());
    registration = std::move(*made);
  }
  node::NodeConfig config = flags.config;
  auto identity = hostio::load_or_create_host_identity(flags.identity);
  if (!identity) return tl::unexpected(identity.error());
  config.identity = std::move(*identity);
  node::NodeParts parts;
  parts.services = with.services;
  auto app = node::NodeApp::start(std::move(config), std::move(parts));
  if (!app) return tl::unexpected(app.error());
  return std::make_unique<tools::NodeService>(std::move(*app), with.services, std::move(registration));
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.config.node_name = host_name();
  flags.config.version = PILLAR_CSI_VERSION;
  // There is no API server yet that the host NQN could be published on, so the node id carries it.
  flags.config.standalone = true;
  tools::Program program;
  program.name = "pillar-node";
  program.description = "Attaches and mounts volumes on this worker";
  program.default_listen = "unix:///var/lib/kubelet/plugins/pillar-csi.bhyoo.com/csi.sock";
  program.default_metrics = "0.0.0.0:9502";
  program.default_health = "0.0.0.0:9808";
  program.add_flags = [&flags](CLI::App& cli) {
    auto& config = flags.config;
    cli.add_option("--node-name", config.node_name, "name of this node")->capture_default_str();
    cli.add_option("--state-dir", config.state_dir, "folder of stage records")->capture_default_str();
    cli.add_option("--allow-path", config.allowed_prefixes,
                   "staging and target paths must lie below one of these folders; repeatable; default: "
                   "anywhere but below "
                   "system folders");
    cli.add_option("--kubelet-dir", config.kubelet_dir,
                   "folder whose mounts have to be seen on the host, empty: not checked")
        ->capture_default_str();
    cli.add_option("--max-volumes-per-node", config.max_volumes_per_node,
                   "reported to the orchestrator, 0: no limit")
        ->capture_default_str();
    cli.add_flag("--legacy-volume-condition,!--no-legacy-volume-condition", config.legacy_volume_condition,
                 "also answer the volume condition of CSI 1.12");
    cli.add_option("--host-nqn-file", flags.identity.nqn_file, "file of this host's NQN, made when missing")
        ->capture_default_str();
    cli.add_option("--host-id-file", flags.identity.id_file, "file of this host's id, made when missing")
        ->capture_default_str();
    cli.add_option("--kubelet-registration-dir", flags.registration_dir,
                   "the kubelet's plugins_registry folder, to register there; default: do not register");
  };
  program.start = [&flags](const tools::Start& with) { return start(flags, with); };
  return tools::run_program(argc, argv, program);
}
