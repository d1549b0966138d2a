#include "tools/kubelet_registration.hpp"

#include <algorithm>
#include <utility>

#include "actors/runtime/logging.hpp"
#include "messages/ids.hpp"

namespace pillar::tools {

Result<std::unique_ptr<KubeletRegistration>> KubeletRegistration::make(
    const std::string& directory, const std::vector<csi_front::Endpoint>& listen,
    const runtime::Services& services) {
  auto endpoint = csi_front::registration_endpoint(directory, std::string(k_driver_name));
  if (!endpoint) return tl::unexpected(with_context(endpoint.error(), "--kubelet-registration-dir"));
  const auto csi = std::find_if(listen.begin(), listen.end(), [](const auto& each) { return each.is_unix; });
  if (csi == listen.end())
    return fail(
        Reason::invalid_argument,
        "--kubelet-registration-dir needs a unix:///PATH among --listen, which the kubelet is sent to");
  return std::unique_ptr<KubeletRegistration>(
      new KubeletRegistration(std::move(*endpoint), csi->path, services));
}

KubeletRegistration::KubeletRegistration(csi_front::Endpoint endpoint, std::string csi_socket,
                                         const runtime::Services& services)
    : endpoint_(std::move(endpoint)),
      service_(std::string(k_driver_name), std::move(csi_socket),
               [this](bool registered, const std::string& error) { take(registered, error); }),
      registered_gauge_(services.metrics->gauge("pillar_csi_node_kubelet_registered",
                                                "1 when the kubelet has taken this plugin")) {}

Result<void> KubeletRegistration::ready() const {
  const std::lock_guard lock(mutex_);
  if (registered_) return {};
  if (error_.empty())
    return fail(Reason::io_error, "the kubelet has not asked at " + endpoint_.path +
                                      " yet; that folder must be its plugins_registry folder");
  return fail(Reason::io_error, "the kubelet refused this plugin: " + error_);
}

void KubeletRegistration::take(bool registered, const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    registered_ = registered;
    error_ = registered ? std::string() : (error.empty() ? "no reason given" : error);
  }
  registered_gauge_.set(registered ? 1 : 0);
  if (registered)
    runtime::log(spdlog::level::info, "registered with the kubelet", {{"socket", endpoint_.path}});
  else
    runtime::log(spdlog::level::warn, "the kubelet refused this plugin and will ask again",
                 {{"error", error}, {"socket", endpoint_.path}});
}

}  // namespace pillar::tools
