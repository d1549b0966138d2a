#include "actors/controller/catalog.hpp"

#include <algorithm>

namespace pillar::controller {
namespace {

template <class T>
bool put(std::map<std::string, T>& map, const crd::Object& object) {
  auto typed = crd::from_object<T>(object);
  if (!typed) {
    map.erase(object.metadata.name);
    return false;
  }
  map.insert_or_assign(object.metadata.name, std::move(*typed));
  return true;
}

/// Calls `f` with the map of `kind`, if it is one of ours.
template <class F>
void with_map(CatalogView& view, crd::Kind kind, F f) {
  switch (kind) {
    case crd::Kind::agent:
      return f(view.agents);
    case crd::Kind::store:
      return f(view.stores);
    case crd::Kind::protocol:
      return f(view.protocols);
    case crd::Kind::storage_class:
      return f(view.classes);
    case crd::Kind::volume:
      return;
  }
}

template <class Map>
bool deleting_in(const Map& map) {
  return std::any_of(map.begin(), map.end(),
                     [](const auto& each) { return each.second.metadata.deleting(); });
}

}  // namespace

bool Catalog::apply(const crd::Object& object) {
  const std::lock_guard lock(mutex_);
  bool good = true;
  with_map(view_, object.kind, [&](auto& map) { good = put(map, object); });
  return good;
}

void Catalog::erase(crd::Kind kind, const std::string& name) {
  const std::lock_guard lock(mutex_);
  with_map(view_, kind, [&](auto& map) { map.erase(name); });
}

void Catalog::keep_only(crd::Kind kind, const std::set<std::string>& present) {
  const std::lock_guard lock(mutex_);
  with_map(view_, kind, [&](auto& map) {
    std::erase_if(map, [&](const auto& each) { return !present.contains(each.first); });
  });
}

CatalogView Catalog::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

bool Catalog::any_deleting() const {
  const std::lock_guard lock(mutex_);
  return deleting_in(view_.agents) || deleting_in(view_.stores) || deleting_in(view_.protocols) ||
         deleting_in(view_.classes);
}

}  // namespace pillar::controller
