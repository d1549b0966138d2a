#pragma once
// The command line of pillarctl: what was asked, as a value.

#include <chrono>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"
#include "messages/error.hpp"

namespace pillar::pillarctl {

enum class Verb {
  help,
  version,
  apply,
  get,
  describe,
  remove,
  wait,
  validate,
  crds,
  accept_rollback,
  set_export_spec
};

/// --store of a Kubernetes cluster.
inline constexpr std::string_view k_kubernetes = "kubernetes";

enum class Output { table, wide, yaml, json, name };

/// What `wait` waits for.
struct WaitFor {
  bool removal = false;
  std::string condition;  ///< condition type when not removal
  std::string status = "True";
};

/// `fence accept-rollback VOLUME --uid U --generation N`; every part is explicit.
struct AcceptRollback {
  std::string volume;  ///< name of the PillarVolumeState
  std::string uid;
  std::int64_t generation = 0;  ///< the one that the agent holds
};

/// `export-spec set VOLUME --bind-address A --port P --acl=true|false`; no part has a default.
struct SetExportSpec {
  std::string volume;  ///< name of the PillarVolumeState
  std::string bind_address;
  std::int32_t port = 0;
  std::optional<bool> acl;
};

/// One resource, or all of its kind when `name` is empty.
struct Target {
  crd::Kind kind = crd::Kind::agent;
  std::string name;
};

struct Invocation {
  Verb verb = Verb::help;
  std::string store;       ///< sqlite:///PATH, or k_kubernetes
  std::string kubeconfig;  ///< files as in KUBECONFIG; given: the store is a cluster
  std::string context;     ///< of the kubeconfig, empty: its current one
  std::vector<std::string> files;
  std::vector<Target> targets;
  Output output = Output::table;
  bool headers = true;
  bool ignore_not_found = false;
  bool wait_for_removal = true;  ///< delete: until the object is gone
  WaitFor wait_for;
  AcceptRollback accept_rollback;
  SetExportSpec set_export_spec;
  std::chrono::milliseconds timeout{30000};
};

/// Parses arguments (without the program name). INVALID_ARGUMENT with a usage hint.
Result<Invocation> parse_arguments(const std::vector<std::string>& arguments,
                                   const std::string& default_store);

/// "30s", "2m", "1h30m", "500ms", "10" (seconds).
Result<std::chrono::milliseconds> parse_duration(std::string_view text);

/// The help text.
std::string usage();

}  // namespace pillar::pillarctl
