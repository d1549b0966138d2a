#pragma once
// The control plane that integration/kubernetes/with-control-plane started for this program.

#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "crd/kube/client.hpp"
#include "crd/kube/store.hpp"

namespace pillar::crd::test {

/// An environment variable of with-control-plane; throws when the program was started without it.
std::string variable(const char* name);

/// Options of the administrator (client certificate), with the definitions of charts/crds installed.
kube::ClientOptions admin_options();
std::shared_ptr<kube::Client> admin();

/// Runs kubectl; its output, and its status in `status` when given, else it must be 0.
std::string kubectl(const std::string& arguments, int* status = nullptr);

/// Removes every object of our kinds, finalizers or not.
void clear_all();

/// A call and its answer, waited for.
Result<nlohmann::json> call(kube::Client& client, kube::Request request);
/// A request with a JSON body.
kube::Request request(const std::string& method, const std::string& path, const nlohmann::json& body);

/// Asks `holds` every few milliseconds, for 20 s at most.
bool eventually(const std::function<bool()>& holds);

}  // namespace pillar::crd::test
