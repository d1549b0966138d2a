#pragma once
// Times as Kubernetes writes them. Internal to crd/.

#include <chrono>
#include <string>

#include "crd/object.hpp"

namespace pillar::crd::kube {

/// Now with microseconds: 2026-01-31T12:00:00.000000Z (MicroTime).
inline std::string micro_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto fraction = std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1000000;
  auto text = timestamp_now();
  auto digits = std::to_string(fraction);
  digits.insert(0, 6 - digits.size(), '0');
  text.insert(text.size() - 1, "." + digits);
  return text;
}

}  // namespace pillar::crd::kube
