#pragma once
// Which nodes can reach a volume: those that report the protocol of its export (docs/interfaces.md section
// 4).

#include <string>
#include <string_view>

#include "messages/csi.pb.h"
#include "messages/error.hpp"

namespace pillar::controller {

/// The node label of a protocol: "topology.pillar-csi.bhyoo.com/nvmeof" for "nvmeof-tcp".
std::string topology_key(std::string_view protocol_type);

/// The accessible_topology of a volume of `protocol_type`.
::csi::v1::Topology accessible_topology(std::string_view protocol_type);

/// True when a node with `segments` reaches volumes of `protocol_type`: it carries the key with "true". Empty
/// segments mean "anywhere".
bool reaches(const ::csi::v1::Topology& segments, std::string_view protocol_type);

/// RESOURCE_EXHAUSTED when a requirement is given and none of its requisite (or, without any, preferred)
/// topologies reaches the volume (reported-faults row R01). Every reachable node is as good as any other, so
/// a preference among them changes nothing.
Result<void> check_topology(const ::csi::v1::TopologyRequirement& requirement,
                            std::string_view protocol_type);

}  // namespace pillar::controller
