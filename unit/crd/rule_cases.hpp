#pragma once
// One good and one bad object for every rule, judged twice: by crd/validation.hpp (unit/crd) and by a real
// API server with charts/crds (unit/kube).

#include <string>
#include <vector>

#include "crd/object.hpp"

namespace pillar::crd::test {

/// A write and its verdict.
struct RuleCase {
  Kind kind = Kind::agent;
  std::string before;   ///< JSON of the stored spec or status; empty: none
  std::string after;    ///< what is written
  std::string refused;  ///< paths of the refused fields, separated by commas; empty: accepted
};

/// Specs of new objects, named "x".
std::vector<RuleCase> new_object_cases();
/// Changes of spec.
std::vector<RuleCase> change_cases();
/// Changes of status.
std::vector<RuleCase> status_cases();

/// A valid spec of a PillarVolumeState, with `more` members.
std::string volume_spec(const std::string& more);
/// A valid spec of any kind.
std::string valid_spec(Kind kind);

}  // namespace pillar::crd::test
