#pragma once
// Answers about the agent that change nothing. Blocking; run in the health pool.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "actors/agent/context.hpp"
#include "hostio/modules.hpp"

namespace pillar::agent {

/// What the agent needs of its host: kernel modules, configfs, volume groups.
std::vector<hostio::HealthItem> look_at_host(const AgentContext& context);

/// The state of what the agent needs of its host, looked at most once per AgentLimits::health_cache.
class HealthProbe {
 public:
  using Look = std::function<std::vector<hostio::HealthItem>(const AgentContext&)>;
  explicit HealthProbe(Look look = look_at_host) : look_(std::move(look)) {}

  /// The latest items; while another thread is looking, those of before. Whoever comes during the very first
  /// look waits for it, up to AgentLimits::first_look, so that an agent that was just started does not count
  /// as a sick one.
  std::vector<hostio::HealthItem> items(const AgentContext& context);

 private:
  const Look look_;
  std::mutex looking_;
  std::mutex data_;
  std::condition_variable looked_;
  std::vector<hostio::HealthItem> items_;
  Clock::time_point at_;
  bool known_ = false;
};

v1::GetCapabilitiesResponse get_capabilities(const AgentContext& context);
v1::HealthCheckResponse health_check(AgentContext& context, HealthProbe& probe,
                                     const v1::HealthCheckRequest& request);
Result<v1::ListVolumesResponse> list_volumes(const AgentContext& context);
Result<v1::ListExportsResponse> list_exports(const AgentContext& context);
/// The Pool message of a volume group.
v1::Pool pool_message(const hostio::VolumeGroup& group);
/// Sets the capacity metrics of a volume group: whoever has just looked at it does.
void publish_size(const AgentContext& context, const hostio::VolumeGroup& group);
/// Bytes of the largest volume that fits now.
std::uint64_t maximum_volume(const hostio::VolumeGroup& group);

}  // namespace pillar::agent
