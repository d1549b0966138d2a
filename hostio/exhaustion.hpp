#pragma once
// "Cannot be read" must not look like "is not there".

#include <string_view>

#include "messages/error.hpp"

namespace pillar::hostio {

/// Reads of the calling thread through hostio/sysfs.hpp that have failed so far because descriptors or memory
/// had run out. Whoever draws conclusions from what is missing compares it before and after.
unsigned exhausted_reads();
/// UNAVAILABLE when exhausted_reads() is not `before` any more.
Result<void> check_not_exhausted(unsigned before, std::string_view what);

}  // namespace pillar::hostio
