#pragma once
// pillarctl as a function, so that tests run it whole.

#include <iosfwd>
#include <string>
#include <vector>

#include "crd/object.hpp"

namespace pillar::pillarctl {

/// Runs one command line (without the program name). Exit status: 0 done, 1 failed or timed out, 2 wrong
/// command line.
int run(const std::vector<std::string>& arguments, const std::string& default_store, std::istream& input,
        std::ostream& out, std::ostream& err);

/// The CustomResourceDefinition of a kind, as charts/crds has it.
std::string definition_yaml(crd::Kind kind);

}  // namespace pillar::pillarctl
