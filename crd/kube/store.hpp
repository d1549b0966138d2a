#pragma once
// The store on a Kubernetes cluster: our kinds as custom resources (charts/crds). One call is one request,
// except that a list is fetched in pages, and that an object made with a status takes a second request for
// it.

#include <memory>
#include <string>

#include "crd/kube/client.hpp"
#include "crd/store.hpp"

namespace pillar::crd::kube {

class KubernetesStore final : public Store {
 public:
  explicit KubernetesStore(std::shared_ptr<Client> client);
  /// Watches must be destroyed before. Ends the client, and with it what is under way, unless others hold it.
  ~KubernetesStore() override;

  void get(Kind kind, std::string name, Callback<Object> done) override;
  /// A page's continue token lives as long as the server keeps its history (minutes); then VERSION_EXPIRED.
  void list(Kind kind, ListOptions options, Callback<Page> done) override;
  /// The rules that the server's schema cannot express are checked here as well (crd/validation.hpp). When
  /// the second request fails the object exists without its status; the error is the second request's.
  void create(Object object, Callback<Object> done) override;
  void update(Object object, Callback<Object> done) override;
  void update_status(Object object, Callback<Object> done) override;
  /// Of an object that is gone, `Removed::object` has name and uid only.
  void remove(Kind kind, std::string name, Preconditions preconditions, Callback<Removed> done) override;
  std::unique_ptr<Watch> watch(Kind kind, std::string from, WatchHandler handler) override;

  Client& client() { return *client_; }

 private:
  std::shared_ptr<Client> client_;
};

/// Path of the collection of `kind`, and of one object.
std::string path_of(Kind kind);
std::string path_of(Kind kind, std::string_view name);

/// Our form of an object as the server sends it: what it adds for itself is left out, whatever it is.
Object object_from_server(Kind kind, const nlohmann::json& value);

}  // namespace pillar::crd::kube
