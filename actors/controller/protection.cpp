#include "actors/controller/protection.hpp"

#include "actors/controller/records.hpp"

namespace pillar::controller {
namespace {

using Dependents = VolumeIndex::Dependents;

/// Objects of `map` for which `refers` holds, before the volumes.
template <class Map, class Refers>
Dependents with_referrers(const Map& map, Refers refers, Dependents volumes) {
  Dependents all;
  for (const auto& [name, object] : map) {
    if (!refers(object)) continue;
    ++all.count;
    if (all.names.size() < k_named_dependents)
      all.names.push_back(crd::subject(std::decay_t<decltype(object)>::k_kind, name));
  }
  all.count += volumes.count;
  for (auto& name : volumes.names)
    if (all.names.size() < k_named_dependents) all.names.push_back("volume " + name);
  return all;
}

}  // namespace

std::string describe(const Dependents& dependents) {
  std::string text;
  for (const auto& name : dependents.names) text += (text.empty() ? "" : ", ") + name;
  if (dependents.count > dependents.names.size())
    text += " and " + std::to_string(dependents.count - dependents.names.size()) + " more";
  return text;
}

Dependents dependents_of(const crd::PillarAgent& agent, const CatalogView& view, const VolumeIndex& volumes) {
  const auto& name = agent.metadata.name;
  return with_referrers(
      view.stores, [&](const auto& store) { return store.spec.agent_ref == name; },
      volumes.on_agent_names(name, k_named_dependents));
}

Dependents dependents_of(const crd::PillarStore& store, const CatalogView& view, const VolumeIndex& volumes) {
  const auto& name = store.metadata.name;
  return with_referrers(
      view.classes, [&](const auto& each) { return each.spec.store_ref == name; },
      volumes.made_from(k_origin_store, name, k_named_dependents));
}

Dependents dependents_of(const crd::PillarProtocol& protocol, const CatalogView& view,
                         const VolumeIndex& volumes) {
  const auto& name = protocol.metadata.name;
  return with_referrers(
      view.classes, [&](const auto& each) { return each.spec.protocol_ref == name; },
      volumes.made_from(k_origin_protocol, name, k_named_dependents));
}

Dependents dependents_of(const crd::PillarStorageClass& storage_class, const CatalogView&,
                         const VolumeIndex& volumes) {
  const std::map<std::string, crd::PillarStorageClass> none;
  return with_referrers(
      none, [](const auto&) { return false; },
      volumes.made_from(k_origin_class, storage_class.metadata.name, k_named_dependents));
}

}  // namespace pillar::controller
