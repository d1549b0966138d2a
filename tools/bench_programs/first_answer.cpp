// pillar-first-answer: starts a program again and again and prints, as JSON, how long each start took to its
// first answered call.
//   pillar-first-answer --target unix:/run/n.sock --call probe --runs 20 -- ./pillar-node --listen
//   unix:///run/n.sock

#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "messages/agent.grpc.pb.h"
#include "messages/csi.grpc.pb.h"

namespace {

using SteadyClock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::chrono::seconds k_patience{20};

struct Options {
  std::string target;  ///< unix:/PATH or 127.0.0.1:PORT
  std::string call = "probe";
  int runs = 10;
  std::vector<std::string> program;
};

// Does anybody listen? gRPC itself would wait 100 ms or more between two attempts.
bool listening(const std::string& target) {
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (target.starts_with("unix:")) {
    auto& address = reinterpret_cast<sockaddr_un&>(storage);
    address.sun_family = AF_UNIX;
    const std::string path = target.substr(5);
    if (path.size() >= sizeof(address.sun_path)) return false;
    std::copy(path.begin(), path.end(), &address.sun_path[0]);
    size = sizeof(address);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(target.substr(target.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    size = sizeof(address);
  }
  const int fd = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&storage), size) == 0;
  ::close(fd);
  return connected;
}

grpc::Status ask(const std::string& call, const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + k_patience);
  if (call == "probe") {
    csi::v1::ProbeResponse response;
    return csi::v1::Identity::NewStub(channel)->Probe(&context, {}, &response);
  }
  pillar::agent::v1::HealthCheckResponse response;
  return pillar::agent::v1::Agent::NewStub(channel)->HealthCheck(&context, {}, &response);
}

std::optional<pid_t> spawn(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) return std::nullopt;
  return pid;
}

bool ended(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == pid; }

struct Start {
  double listening_ms = 0;
  double answered_ms = 0;
};

std::optional<Start> measure(const Options& options) {
  // A channel of its own, not one shared with an earlier run.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto begin = SteadyClock::now();
  const auto pid = spawn(options.program);
  if (!pid) return std::nullopt;
  Start start;
  std::optional<Start> result;
  while (SteadyClock::now() - begin < k_patience) {
    if (ended(*pid)) return std::nullopt;
    if (!listening(options.target)) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      continue;
    }
    start.listening_ms = Milliseconds(SteadyClock::now() - begin).count();
    const auto channel =
        grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), arguments);
    const auto status = ask(options.call, channel);
    start.answered_ms = Milliseconds(SteadyClock::now() - begin).count();
    if (status.ok()) result = start;
    if (!status.ok()) std::fprintf(stderr, "pillar-first-answer: %s\n", status.error_message().c_str());
    break;
  }
  ::kill(*pid, SIGTERM);
  ::waitpid(*pid, nullptr, 0);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App cli("Times a program's start to its first answered call", "pillar-first-answer");
  cli.add_option("--target", options.target, "gRPC target of the program")->required();
  cli.add_option("--call", options.call, "probe (csi.v1.Identity) or health (the agent)")
      ->check(CLI::IsMember({"probe", "health"}));
  cli.add_option("--runs", options.runs, "starts")->check(CLI::Range(1, 1000));
  cli.add_option("program", options.program, "program and its arguments, after --")->required();
  CLI11_PARSE(cli, argc, argv);
  auto starts = nlohmann::json::array();
  for (int i = 0; i < options.runs; ++i) {
    const auto start = measure(options);
    if (!start) {
      std::fprintf(stderr, "pillar-first-answer: %s did not answer\n", options.program.front().c_str());
      return 1;
    }
    starts.push_back({{"listening_ms", start->listening_ms}, {"answered_ms", start->answered_ms}});
  }
  std::printf("%s\n", starts.dump().c_str());
  return 0;
}
