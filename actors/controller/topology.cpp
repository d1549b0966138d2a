#include "actors/controller/topology.hpp"

#include <algorithm>

namespace pillar::controller {

std::string topology_key(std::string_view protocol_type) {
  const std::string_view short_name = protocol_type == "nvmeof-tcp" ? "nvmeof" : protocol_type;
  return "topology.pillar-csi.bhyoo.com/" + std::string(short_name);
}

::csi::v1::Topology accessible_topology(std::string_view protocol_type) {
  ::csi::v1::Topology topology;
  (*topology.mutable_segments())[topology_key(protocol_type)] = "true";
  return topology;
}

bool reaches(const ::csi::v1::Topology& segments, std::string_view protocol_type) {
  if (segments.segments().empty()) return true;
  const auto found = segments.segments().find(topology_key(protocol_type));
  return found != segments.segments().end() && found->second == "true";
}

Result<void> check_topology(const ::csi::v1::TopologyRequirement& requirement,
                            std::string_view protocol_type) {
  const auto& wanted = requirement.requisite().empty() ? requirement.preferred() : requirement.requisite();
  if (wanted.empty()) return {};
  const bool any = std::any_of(wanted.begin(), wanted.end(),
                               [&](const auto& each) { return reaches(each, protocol_type); });
  if (any) return {};
  return fail(Reason::no_space, "no requested topology can reach a " + std::string(protocol_type) +
                                    " volume; at least one needs the segment " + topology_key(protocol_type) +
                                    "=true, which a node reports when it can attach such volumes");
}

}  // namespace pillar::controller
