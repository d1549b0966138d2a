#include "tools/program.hpp"

#include <cstdio>
#include <sstream>

#include "actors/runtime/logging.hpp"
#include "actors/runtime/metrics_http.hpp"
#include "actors/runtime/system.hpp"
#include "hostio/helper_process.hpp"
#include "hostio/host_helpers.hpp"

namespace pillar::tools {
namespace {

// How long calls in flight may take to finish once the program was told to stop; below the usual 30 s of a
// supervisor.
constexpr std::chrono::milliseconds k_grace{3000};
constexpr std::chrono::seconds k_actor_limit{10};

struct Flags {
  std::string listen;
  std::string metrics_listen;
  std::string health_listen;
  std::string log_format = "text";
  std::string log_level = "info";
  bool enable_chaos = false;
  std::string chaos;
};

void add_common_flags(CLI::App& cli, Flags& flags) {
  cli.add_option("--listen", flags.listen,
                 "gRPC endpoints, comma separated: unix:///PATH or tcp://ADDRESS:PORT")
      ->capture_default_str();
  cli.add_option("--metrics-listen", flags.metrics_listen,
                 "ADDRESS:PORT of /metrics, /healthz, /readyz; empty: none")
      ->capture_default_str();
  cli.add_option("--health-listen", flags.health_listen,
                 "further ADDRESS:PORT with the same pages; empty: none")
      ->capture_default_str();
  cli.add_option("--log-format", flags.log_format, "text or json")->capture_default_str();
  cli.add_option("--log-level", flags.log_level, "trace, debug, info, warning, error or off")
      ->capture_default_str();
  cli.add_flag("--enable-chaos", flags.enable_chaos, "allow injected faults (tests and game days only)");
  cli.add_option("--chaos", flags.chaos,
                 "faults to inject from the start, see docs/actors.md; needs --enable-chaos");
  cli.set_version_flag("--version", PILLAR_CSI_VERSION);
}

Result<std::vector<csi_front::Endpoint>> parse_endpoints(const std::string& list) {
  std::vector<csi_front::Endpoint> endpoints;
  std::stringstream stream(list);
  for (std::string text; std::getline(stream, text, ',');) {
    auto endpoint = csi_front::Endpoint::parse(text);
    if (!endpoint) return tl::unexpected(with_context(endpoint.error(), "--listen"));
    endpoints.push_back(std::move(*endpoint));
  }
  if (endpoints.empty())
    return fail(Reason::invalid_argument, "--listen is empty; give at least one endpoint");
  return endpoints;
}

Result<void> serve_pages(const std::string& listen, const runtime::Services& services, Service& service,
                         std::vector<std::unique_ptr<runtime::MetricsHttp>>& pages) {
  if (listen.empty()) return {};
  runtime::MetricsHttpOptions options;
  options.listen = listen;
  options.services = services;
  options.ready = [&service] { return service.ready(); };
  auto page = runtime::MetricsHttp::start(std::move(options));
  if (!page) return tl::unexpected(page.error());
  pages.push_back(std::move(*page));
  return {};
}

Result<void> run(const Program& program, const Flags& flags) {
  auto endpoints = parse_endpoints(flags.listen);
  if (!endpoints) return tl::unexpected(endpoints.error());
  runtime::Services services;
  services.chaos = std::make_shared<runtime::Chaos>(flags.enable_chaos);
  if (!flags.chaos.empty())
    if (auto added = services.chaos->add_spec(flags.chaos); !added) return added;
  services.metrics
      ->gauge("pillar_csi_build_info", "Version of this program, always 1", {{"version", PILLAR_CSI_VERSION}})
      .set(1);

  auto service = program.start(Start{services, *endpoints});
  if (!service) return tl::unexpected(service.error());
  for (auto& further : (*service)->further_endpoints()) endpoints->push_back(std::move(further));
  const auto stop_actors = [&] {
    if (!(*service)->stop(k_actor_limit))
      runtime::log(spdlog::level::warn,
                   "some actors did not end in time; what they held is recovered at the next start");
  };
  std::vector<std::unique_ptr<runtime::MetricsHttp>> pages;
  Result<void> serving = serve_pages(flags.metrics_listen, services, **service, pages);
  if (serving) serving = serve_pages(flags.health_listen, services, **service, pages);
  auto server = serving ? csi_front::Server::start(*endpoints, (*service)->grpc_services())
                        : Result<std::unique_ptr<csi_front::Server>>(tl::unexpected(serving.error()));
  if (!server) {
    stop_actors();
    return tl::unexpected(server.error());
  }
  runtime::log(spdlog::level::info, program.name + " started",
               {{"version", PILLAR_CSI_VERSION}, {"listen", flags.listen}});
  const int signal = runtime::wait_for_termination();
  runtime::log(spdlog::level::info, program.name + " stopping", {{"signal", std::to_string(signal)}});
  pages.clear();
  (*server)->shutdown(k_grace, stop_actors);
  return {};
}

}  // namespace

int run_program(int argc, char** argv, const Program& program) {
  hostio::register_host_helpers();
  if (const auto code = hostio::run_helper_main(argc, argv)) return *code;
  runtime::block_termination_signals();

  Flags flags;
  flags.listen = program.default_listen;
  flags.metrics_listen = program.default_metrics;
  flags.health_listen = program.default_health;
  CLI::App cli(program.description, program.name);
  add_common_flags(cli, flags);
  program.add_flags(cli);
  try {
    cli.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return cli.exit(error) == 0 ? 0 : 2;
  }
  if (auto logging = runtime::setup_logging(flags.log_format, flags.log_level); !logging) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(), logging.error().message.c_str());
    return 2;
  }
  const Result<void> result = run(program, flags);
  if (!result) {
    std::fprintf(stderr, "%s: cannot start: %s\n", program.name.c_str(), result.error().message.c_str());
    return 1;
  }
  return 0;
}

csi_front::CallObserver call_metrics(std::shared_ptr<runtime::Metrics> metrics, const std::string& family) {
  return
      [metrics = std::move(metrics), prefix = "pillar_csi_" + family](const csi_front::CallRecord& record) {
        const std::string method(record.method);
        metrics
            ->counter(prefix + "_requests_total", "Completed calls by method and gRPC code",
                      {{"method", method}, {"code", std::string(to_string(record.code))}})
            .add();
        metrics
            ->histogram(prefix + "_request_seconds", "Time from receiving a call to answering it",
                        {{"method", method}})
            .observe(record.seconds.count());
      };
}

}  // namespace pillar::tools
