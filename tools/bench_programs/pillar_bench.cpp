// pillar-bench: drives full volume life cycles against running programs over their CSI sockets and prints, as
// JSON, how fast they went.
//   pillar-bench --controller unix:/C.sock --node unix:/N.sock --class fast --in-flight 8 --cycles 200

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "messages/csi.grpc.pb.h"

namespace {

using SteadyClock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string controller;
  std::string node;
  std::string storage_class = "fast";
  std::string staging_root = "/tmp/pillar-bench";
  unsigned in_flight = 1;
  unsigned cycles = 100;
};

// Latencies by method; filled from gRPC threads.
class Times {
 public:
  void add(const std::string& method, Seconds seconds) {
    const std::lock_guard lock(mutex_);
    times_[method].push_back(seconds.count() * 1e3);
  }
  /// p50 and p99 in milliseconds by method.
  nlohmann::json summary() {
    auto out = nlohmann::json::object();
    for (auto& [method, values] : times_) {
      std::sort(values.begin(), values.end());
      const auto at = [&values](double share) {
        return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
      };
      out[method] = {{"p50_ms", at(0.5)}, {"p99_ms", at(0.99)}, {"calls", values.size()}};
    }
    return out;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> times_;
};

// One volume's life after the other, as a chain of asynchronous calls; in_flight chains run at once.
class Chain : public std::enable_shared_from_this<Chain> {
 public:
  Chain(const Options& options, csi::v1::Controller::Stub& controller, csi::v1::Node::Stub& node,
        std::string node_id, std::atomic<int>& left, Times& times)
      : options_(options),
        controller_(controller),
        node_(node),
        node_id_(std::move(node_id)),
        left_(left),
        times_(times) {}

  // Ends with an empty text or with what failed.
  std::future<std::string> run(unsigned number) {
    number_ = number;
    auto ended = done_.get_future();
    next();
    return ended;
  }

 private:
  template <class Request, class Response>
  struct Rpc {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  // Sends `request` with `send(context, request, response, callback)` and continues with `then(response)`.
  template <class Response, class Request, class Send, class Then>
  void call(const char* name, Request request, Send send, Then then) {
    auto rpc = std::make_shared<Rpc<Request, Response>>();
    rpc->request = std::move(request);
    rpc->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto begin = SteadyClock::now();
    auto self = shared_from_this();
    send(&rpc->context, &rpc->request, &rpc->response, [=](grpc::Status status) {
      self->times_.add(name, SteadyClock::now() - begin);
      if (status.ok()) return then(rpc->response);
      self->done_.set_value(std::string(name) + ": " + status.error_message());
    });
  }

  void next() {
    if (left_.fetch_sub(1) <= 0) return done_.set_value("");
    begin_ = SteadyClock::now();
    create();
  }

  csi::v1::VolumeCapability capability() const {
    csi::v1::VolumeCapability capability;
    capability.mutable_mount()->set_fs_type("ext4");
    capability.mutable_access_mode()->set_mode(csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
    return capability;
  }
  std::string path(const char* what) const {
    return options_.staging_root + "/" + what + "-" + std::to_string(number_);
  }

  void create() {
    csi::v1::CreateVolumeRequest request;
    request.set_name("bench-" + std::to_string(number_) + "-" + std::to_string(round_++));
    request.mutable_capacity_range()->set_required_bytes(64 << 20);
    *request.add_volume_capabilities() = capability();
    (*request.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = options_.storage_class;
    call<csi::v1::CreateVolumeResponse>(
        "CreateVolume", request, [this](auto... rpc) { controller_.async()->CreateVolume(rpc...); },
        [this](const auto& response) {
          volume_ = response.volume();
          publish();
        });
  }
  void publish() {
    csi::v1::ControllerPublishVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_node_id(node_id_);
    *request.mutable_volume_capability() = capability();
    *request.mutable_volume_context() = volume_.volume_context();
    call<csi::v1::ControllerPublishVolumeResponse>(
        "ControllerPublishVolume", request,
        [this](auto... rpc) { controller_.async()->ControllerPublishVolume(rpc...); },
        [this](const auto& response) {
          context_ = {response.publish_context().begin(), response.publish_context().end()};
          stage();
        });
  }
  void stage() {
    csi::v1::NodeStageVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_staging_target_path(path("staging"));
    *request.mutable_volume_capability() = capability();
    *request.mutable_volume_context() = volume_.volume_context();
    for (const auto& [key, value] : context_) (*request.mutable_publish_context())[key] = value;
    call<csi::v1::NodeStageVolumeResponse>(
        "NodeStageVolume", request, [this](auto... rpc) { node_.async()->NodeStageVolume(rpc...); },
        [this](const auto&) { mount(); });
  }
  void mount() {
    csi::v1::NodePublishVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_staging_target_path(path("staging"));
    request.set_target_path(path("target"));
    *request.mutable_volume_capability() = capability();
    *request.mutable_volume_context() = volume_.volume_context();
    for (const auto& [key, value] : context_) (*request.mutable_publish_context())[key] = value;
    call<csi::v1::NodePublishVolumeResponse>(
        "NodePublishVolume", request, [this](auto... rpc) { node_.async()->NodePublishVolume(rpc...); },
        [this](const auto&) { unmount(); });
  }
  void unmount() {
    csi::v1::NodeUnpublishVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_target_path(path("target"));
    call<csi::v1::NodeUnpublishVolumeResponse>(
        "NodeUnpublishVolume", request, [this](auto... rpc) { node_.async()->NodeUnpublishVolume(rpc...); },
        [this](const auto&) { unstage(); });
  }
  void unstage() {
    csi::v1::NodeUnstageVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_staging_target_path(path("staging"));
    call<csi::v1::NodeUnstageVolumeResponse>(
        "NodeUnstageVolume", request, [this](auto... rpc) { node_.async()->NodeUnstageVolume(rpc...); },
        [this](const auto&) { unpublish(); });
  }
  void unpublish() {
    csi::v1::ControllerUnpublishVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    request.set_node_id(node_id_);
    call<csi::v1::ControllerUnpublishVolumeResponse>(
        "ControllerUnpublishVolume", request,
        [this](auto... rpc) { controller_.async()->ControllerUnpublishVolume(rpc...); },
        [this](const auto&) { remove(); });
  }
  void remove() {
    csi::v1::DeleteVolumeRequest request;
    request.set_volume_id(volume_.volume_id());
    call<csi::v1::DeleteVolumeResponse>(
        "DeleteVolume", request, [this](auto... rpc) { controller_.async()->DeleteVolume(rpc...); },
        [this](const auto&) {
          times_.add("whole cycle", SteadyClock::now() - begin_);
          next();
        });
  }

  const Options& options_;
  csi::v1::Controller::Stub& controller_;
  csi::v1::Node::Stub& node_;
  std::string node_id_;
  std::atomic<int>& left_;
  Times& times_;
  unsigned number_ = 0;
  unsigned round_ = 0;
  SteadyClock::time_point begin_;
  csi::v1::Volume volume_;
  std::map<std::string, std::string> context_;
  std::promise<std::string> done_;
};

int drive(const Options& options) {
  auto channel = grpc::CreateChannel(options.controller, grpc::InsecureChannelCredentials());
  auto node_channel = grpc::CreateChannel(options.node, grpc::InsecureChannelCredentials());
  const auto controller = csi::v1::Controller::NewStub(channel);
  const auto node = csi::v1::Node::NewStub(node_channel);
  grpc::ClientContext context;
  csi::v1::NodeGetInfoResponse info;
  if (const auto status = node->NodeGetInfo(&context, {}, &info); !status.ok()) {
    std::fprintf(stderr, "pillar-bench: NodeGetInfo: %s\n", status.error_message().c_str());
    return 1;
  }
  Times times;
  std::atomic<int> left{static_cast<int>(options.cycles)};
  std::vector<std::shared_ptr<Chain>> chains;
  std::vector<std::future<std::string>> ends;
  const auto begin = SteadyClock::now();
  for (unsigned i = 0; i < options.in_flight; ++i) {
    std::filesystem::create_directories(options.staging_root + "/staging-" + std::to_string(i));
    chains.push_back(std::make_shared<Chain>(options, *controller, *node, info.node_id(), left, times));
    ends.push_back(chains.back()->run(i));
  }
  int failed = 0;
  for (auto& end : ends) {
    const std::string error = end.get();
    if (error.empty()) continue;
    std::fprintf(stderr, "pillar-bench: %s\n", error.c_str());
    failed = 1;
  }
  const Seconds wall = SteadyClock::now() - begin;
  const nlohmann::json report{{"in_flight", options.in_flight},
                              {"cycles", options.cycles},
                              {"seconds", wall.count()},
                              {"methods", times.summary()}};
  std::printf("%s\n", report.dump().c_str());
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App cli("Drives volume life cycles against running programs", "pillar-bench");
  cli.add_option("--controller", options.controller, "gRPC target of pillar-controller")->required();
  cli.add_option("--node", options.node, "gRPC target of pillar-node")->required();
  cli.add_option("--class", options.storage_class, "PillarStorageClass to use")->capture_default_str();
  cli.add_option("--staging-root", options.staging_root, "folder for staging and target paths")
      ->capture_default_str();
  cli.add_option("--in-flight", options.in_flight, "life cycles at once")->check(CLI::Range(1, 1024));
  cli.add_option("--cycles", options.cycles, "life cycles in all")->check(CLI::Range(1, 1000000));
  CLI11_PARSE(cli, argc, argv);
  return drive(options);
}
