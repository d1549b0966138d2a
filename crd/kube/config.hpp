#pragma once
// Where the API server is and who we are there: a kubeconfig file, or the files every pod finds in its
// container. Nothing that can be replaced while we run (token, certificates, CA) is kept: it is read again.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"

namespace pillar::crd::kube {

/// A value that a kubeconfig gives directly or as a file.
struct Material {
  std::string data;
  std::string file;
  bool empty() const { return data.empty() && file.empty(); }
  /// The value; a file is read at each call. `what` names it in errors (FAILED_PRECONDITION).
  Result<std::string> read(std::string_view what) const;
};

struct Config {
  std::string source;  ///< for messages: the file, or "in-cluster"
  std::string server;  ///< https://host:port
  Material ca;
  Material certificate;
  Material key;
  Material token;           ///< bearer token
  std::string server_name;  ///< what the server's certificate must be for; empty: the host of `server`
  bool verify = true;
  std::string name_space = "default";  ///< of what is namespaced (Events, Leases)
};

/// Where pods find their service account.
inline constexpr std::string_view k_service_account_dir = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The configuration of a pod: KUBERNETES_SERVICE_HOST and _PORT, and the files below `directory`.
/// FAILED_PRECONDITION outside of one.
Result<Config> in_cluster_config(const std::string& directory = std::string(k_service_account_dir));

/// Reads kubeconfig files; `paths` may be several, separated by ':', the first one that has a name wins.
/// `context` empty: current-context. NOT_FOUND, INVALID_ARGUMENT naming file and entry, UNSUPPORTED for
/// credential plug-ins and proxies.
Result<Config> load_kubeconfig(const std::string& paths, const std::string& context = {});

/// What a program that is told nothing uses: `kubeconfig` when it is not empty, else KUBECONFIG, else the
/// pod's own configuration when it runs in one, else ~/.kube/config. `context` as above.
Result<Config> find_config(const std::string& kubeconfig, const std::string& context);

/// Standard base64 with padding; nothing when it is none.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace pillar::crd::kube
