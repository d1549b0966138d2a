#pragma once
// Answers about the agent that change nothing. Blocking; run in the health pool.

#include <mutex>
#include <vector>

#include "actors/agent/context.hpp"
#include "hostio/modules.hpp"

namespace pillar::agent {

/// The state of what the agent needs of its host, looked at most once per AgentLimits::health_cache.
class HealthProbe {
 public:
  /// The latest items; while another thread is looking, those of before.
  std::vector<hostio::HealthItem> items(const AgentContext& context);

 private:
  std::mutex looking_;
  std::mutex data_;
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
