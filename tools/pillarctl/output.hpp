#pragma once
// How resources are shown.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "crd/object.hpp"

namespace pillar::pillarctl {

/// Block-style YAML of a JSON value, ending with a newline.
std::string to_yaml(const nlohmann::json& value);

/// "45s", "5m30s", "3h20m", "12d", as kubectl shows ages.
std::string human_duration(std::int64_t seconds);

/// Columns of a kind and the cells of its objects (docs/interfaces.md section 1). `now`: seconds since the
/// epoch.
std::vector<std::string> headers(crd::Kind kind, bool wide);
std::vector<std::string> cells(const crd::Object& object, bool wide, std::int64_t now);

/// Aligned columns, three blanks apart. Blank cells become <none>.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// The long form: metadata, spec, status, conditions.
std::string describe(const crd::Object& object, std::int64_t now);

/// "pillarstore.pillar-csi.bhyoo.com/fast".
std::string resource_name(const crd::Object& object);
std::string resource_name(crd::Kind kind, const std::string& name);

}  // namespace pillar::pillarctl
