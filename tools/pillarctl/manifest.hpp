#pragma once
// Manifests: files of documents, read and checked as a whole before anything is changed.

#include <iosfwd>
#include <string>
#include <vector>

#include "crd/object.hpp"
#include "crd/yaml.hpp"
#include "messages/error.hpp"

namespace pillar::pillarctl {

/// A resource and where it was written.
struct Manifest {
  std::string file;
  crd::YamlDocument document;
  crd::Object object;

  /// "file:line:column" of a field.
  std::string at(const std::string& path) const;
};

/// All resources in `files` ("-": `input`), checked against the rules for new objects. Otherwise every
/// problem found, one "file:line:column: Kind/name: field = value: problem" each.
tl::expected<std::vector<Manifest>, std::vector<std::string>> load_manifests(
    const std::vector<std::string>& files, std::istream& input);

}  // namespace pillar::pillarctl
