// pillar-controller: CSI Identity and Controller services, and the only writer of the volumes' records.

#include "actors/controller/agent_client_grpc.hpp"
#include "actors/controller/controller.hpp"
#include "actors/controller/csi_nodes.hpp"
#include "actors/runtime/system.hpp"
#include "crd/kube/store.hpp"
#include "crd/sqlite_store.hpp"
#include "csi/services.hpp"
#include "messages/ids.hpp"
#include "tools/program.hpp"

namespace {

using namespace pillar;

struct Flags {
  std::string store = "sqlite:///var/lib/pillar-csi/controller.db";
  std::string kubeconfig;
  std::string cluster_id;
  std::uint32_t max_volumes_per_node = 0;
  bool legacy_volume_condition = true;
};

class ControllerService final : public tools::Service {
 public:
  ControllerService(controller::ControllerConfig config, const runtime::Services& services)
      : system_(runtime::SystemOptions{.services = services}),
        app_(system_, std::move(config)),
        identity_(app_, tools::call_metrics(services.metrics, "csi")),
        controller_(app_, tools::call_metrics(services.metrics, "csi")) {}

  std::vector<grpc::Service*> grpc_services() override { return {&identity_, &controller_}; }
  Result<void> ready() override {
    if (app_.ready()) return {};
    return fail(Reason::store_unavailable, app_.not_ready_reason());
  }
  bool stop(Clock::duration limit) override {
    app_.stop();
    return system_.shutdown(limit);
  }

 private:
  runtime::System system_;
  controller::ControllerApp app_;
  csi_front::IdentityService<controller::ControllerApp> identity_;
  csi_front::ControllerService<controller::ControllerApp> controller_;
};

/// The store, and who the nodes are, in `config`.
Result<void> open_sqlite(const Flags& flags, controller::ControllerConfig& config) {
  auto path = crd::sqlite_path(flags.store);
  if (!path) return tl::unexpected(with_context(path.error(), "--store"));
  crd::SqliteOptions options;
  options.path = std::move(*path);
  auto store = crd::SqliteStore::open(options);
  if (!store) return tl::unexpected(store.error());
  config.store = std::shared_ptr<crd::Store>(std::move(*store));
  return {};
}

Result<void> open_kubernetes(const Flags& flags, controller::ControllerConfig& config) {
  auto cluster = crd::kube::find_config(flags.kubeconfig, "");
  if (!cluster) return tl::unexpected(with_context(cluster.error(), "--kubeconfig"));
  crd::kube::ClientOptions options;
  options.config = std::move(*cluster);
  options.user_agent = "pillar-controller/" PILLAR_CSI_VERSION;
  auto client = crd::kube::Client::make(std::move(options));
  if (!client) return tl::unexpected(client.error());
  config.store = std::make_shared<crd::kube::KubernetesStore>(*client);
  config.nodes = std::make_shared<controller::CsiNodes>(*client);
  return {};
}

Result<std::unique_ptr<tools::Service>> start(const Flags& flags, const runtime::Services& services) {
  controller::ControllerConfig config;
  const bool cluster = flags.store == "kubernetes" || !flags.kubeconfig.empty();
  if (auto opened = (cluster ? open_kubernetes : open_sqlite)(flags, config); !opened)
    return tl::unexpected(opened.error());
  config.cluster_id = flags.cluster_id;
  config.version = PILLAR_CSI_VERSION;
  config.connect = controller::grpc_agent_factory();
  config.limits.max_volumes_per_node = flags.max_volumes_per_node;
  config.legacy_volume_condition = flags.legacy_volume_condition;
  return std::make_unique<ControllerService>(std::move(config), services);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  tools::Program program;
  program.name = "pillar-controller";
  program.description = "CSI controller of pillar-csi and keeper of its resources";
  program.default_listen = "unix:///csi/csi.sock";
  program.default_metrics = "0.0.0.0:8080";
  program.default_health = "0.0.0.0:8081";
  program.add_flags = [&flags](CLI::App& cli) {
    cli.add_option("--store", flags.store, "where resources live: sqlite:///PATH or kubernetes")
        ->capture_default_str();
    cli.add_option(
        "--kubeconfig", flags.kubeconfig,
        "kubeconfig file of the cluster, implies --store kubernetes; without it KUBECONFIG, else the "
        "configuration of the pod");
    cli.add_option("--cluster-id", flags.cluster_id,
                   "enters every subsystem name; two clusters that share storage nodes or workers need "
                   "different ones, and "
                   "it must never change while volumes exist")
        ->required()
        ->check([](const std::string& text) {
          const bool good = !text.empty() && text.size() <= 63 && is_object_name(text);
          return good ? std::string()
                      : "'" + text + "' is not a name of lower-case letters, digits and '-', at most 63";
        });
    cli.add_option("--max-volumes-per-node", flags.max_volumes_per_node, "publications per node, 0: no limit")
        ->capture_default_str();
    cli.add_flag("--legacy-volume-condition,!--no-legacy-volume-condition", flags.legacy_volume_condition,
                 "also answer the volume condition of CSI 1.12");
  };
  program.start = [&flags](const tools::Start& with) { return start(flags, with.services); };
  return tools::run_program(argc, argv, program);
}
