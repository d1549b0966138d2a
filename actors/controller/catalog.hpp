#pragma once
// The configuration objects in memory, fed by the watches: what conditions are computed from.

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "crd/types.hpp"

namespace pillar::controller {

/// One moment's view.
struct CatalogView {
  std::map<std::string, crd::PillarAgent> agents;
  std::map<std::string, crd::PillarStore> stores;
  std::map<std::string, crd::PillarProtocol> protocols;
  std::map<std::string, crd::PillarStorageClass> classes;
};

/// Thread-safe.
class Catalog {
 public:
  /// Takes in an object as stored. False when it does not parse: it is then left out, and the others go on
  /// (reported-faults row Q01). Volume records are not kept here.
  bool apply(const crd::Object& object);
  void erase(crd::Kind kind, const std::string& name);
  /// Drops what is not in `present`, after a list.
  void keep_only(crd::Kind kind, const std::set<std::string>& present);
  CatalogView view() const;
  /// True while an object waits for its dependents to go.
  bool any_deleting() const;

 private:
  mutable std::mutex mutex_;
  CatalogView view_;
};

}  // namespace pillar::controller
