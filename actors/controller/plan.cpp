#include "actors/controller/plan.hpp"

#include <algorithm>
#include <limits>

#include "actors/controller/config_status.hpp"
#include "actors/controller/records.hpp"
#include "actors/controller/topology.hpp"
#include "crd/filesystem_options.hpp"
#include "crd/settings.hpp"

namespace pillar::controller {
namespace {

constexpr auto k_capacity_call = std::chrono::seconds(20);

/// A read of something the parameters name: an absent object is the operator's to make.
template <class T>
Task<Result<T>> read_named(Ports ports, std::string name) {
  auto reading = get_typed<T>(ports, name);
  auto object = co_await std::move(reading);
  if (!object && object.error().reason == Reason::not_found)
    co_return fail(Reason::dependency_missing,
                   crd::subject(T::k_kind, name) + " does not exist; create it or name another one",
                   {{"object", crd::subject(T::k_kind, name)}});
  co_return object;
}

/// Settings that this version records but cannot carry out are refused, never ignored.
Result<void> check_served(const crd::PillarProtocol& protocol) {
  const auto& nvme = protocol.spec.protocol.nvmeof_tcp;
  const auto name = crd::subject(crd::Kind::protocol, protocol.metadata.name);
  if (!nvme)
    return fail(Reason::unsupported, Code::failed_precondition,
                name + " is of type " + std::string(protocol.spec.protocol.type()) +
                    ", which is not served yet; use nvmeofTcp");
  if (nvme->auth.type != crd::NvmeAuth::none)
    return fail(Reason::unsupported, Code::failed_precondition,
                name + " asks for in-band authentication, which is not served yet; set auth.type to None");
  return {};
}

std::optional<Error> not_ready(const crd::PillarStore& store) {
  const auto* ready = crd::find_condition(store.status.conditions, "Ready");
  if (ready != nullptr && ready->status == crd::ConditionStatus::yes) return std::nullopt;
  const std::string why = ready == nullptr ? "it was not checked yet" : ready->reason + ": " + ready->message;
  return fail(Reason::store_not_ready,
              crd::subject(crd::Kind::store, store.metadata.name) + " is not ready (" + why + ")",
              {{"object", crd::subject(crd::Kind::store, store.metadata.name)}})
      .value();
}

/// The flags of each capability, alone and together with the options of the class, as a node merges them.
Result<void> check_mount_flags(const csi::CreateVolumeRequest& request,
                               const crd::ResolvedFilesystem& filesystem) {
  const std::string path = "volume_capabilities.mount.mount_flags";
  for (const auto& capability : request.volume_capabilities()) {
    const auto& flags = capability.mount().mount_flags();
    std::vector<std::string> list(flags.begin(), flags.end());
    auto errors = crd::check_mount_options(filesystem.fs_type, list, path);
    if (errors.empty()) {
      list.insert(list.begin(), filesystem.mount_options.begin(), filesystem.mount_options.end());
      errors = crd::check_mount_options(filesystem.fs_type, list, "mountOptions of the class and " + path);
    }
    if (!errors.empty()) return tl::unexpected(crd::to_error("CreateVolume " + request.name(), errors));
  }
  return {};
}

crd::VolumeSpec spec_for(const VolumeId& id, const CreateWishes& wishes, const crd::Resolved& resolved) {
  crd::VolumeSpec spec;
  spec.volume_id = id.str();
  spec.agent_volume_id = id.volume.str();
  spec.agent_ref = id.agent;
  spec.backend_type = id.backend_type;
  spec.protocol_type = id.protocol_type;
  spec.capacity_bytes = static_cast<std::int64_t>(wishes.size.required);
  spec.resolved = resolved;
  return spec;
}

std::int64_t to_int64(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, std::numeric_limits<std::int64_t>::max()));
}

Task<Result<csi::GetCapacityResponse>> total_capacity(Ports ports) {
  auto listing = list_objects(ports, crd::Kind::store);
  auto objects = co_await std::move(listing);
  if (!objects) co_return tl::unexpected(objects.error());
  csi::GetCapacityResponse response;
  std::int64_t largest = 0;
  for (const auto& object : *objects) {
    const auto store = crd::from_object<crd::PillarStore>(object);
    if (!store || not_ready(*store) || !store->status.capacity) continue;
    response.set_available_capacity(response.available_capacity() + store->status.capacity->available);
    largest = std::max(largest, store->status.capacity->available);
  }
  response.mutable_maximum_volume_size()->set_value(largest);
  co_return response;
}

}  // namespace

Task<Result<Sources>> read_sources(Ports ports, std::map<std::string, std::string> parameters,
                                   std::string fs_type) {
  auto parsed = crd::parse_class_parameters(parameters);
  if (!parsed) co_return tl::unexpected(parsed.error());
  Sources sources;
  std::vector<crd::SettingsLayer> layers;
  if (!parsed->storage_class.empty()) {
    auto reading = read_named<crd::PillarStorageClass>(ports, parsed->storage_class);
    auto found = co_await std::move(reading);
    if (!found) co_return tl::unexpected(found.error());
    sources.storage_class = parsed->storage_class;
    parsed->store_ref = found->spec.store_ref;
    parsed->protocol_ref = found->spec.protocol_ref;
    layers.push_back(crd::layer_of(*found));
  }
  auto reading_store = read_named<crd::PillarStore>(ports, parsed->store_ref);
  auto store = co_await std::move(reading_store);
  if (!store) co_return tl::unexpected(store.error());
  auto reading_protocol = read_named<crd::PillarProtocol>(ports, parsed->protocol_ref);
  auto protocol = co_await std::move(reading_protocol);
  if (!protocol) co_return tl::unexpected(protocol.error());
  layers.push_back(parsed->layer);
  if (parsed->fs_type || !fs_type.empty()) {
    crd::SettingsLayer asked;
    asked.origin = "volume capability";
    asked.filesystem.fs_type = parsed->fs_type;
    if (!fs_type.empty()) {
      const auto type = crd::fs_type_from_string(fs_type);
      if (!type) co_return tl::unexpected(type.error());
      asked.filesystem.fs_type = *type;
    }
    layers.push_back(std::move(asked));
  }
  auto resolved = crd::resolve(store->spec.backend, protocol->spec.protocol, layers);
  if (!resolved) co_return tl::unexpected(resolved.error());
  sources.store = std::move(*store);
  sources.protocol = std::move(*protocol);
  sources.resolved = std::move(*resolved);
  co_return sources;
}

Task<Result<CreatePlan>> plan_create(Ports ports, std::shared_ptr<const csi::CreateVolumeRequest> request) {
  auto wishes = check_create_request(*request);
  if (!wishes) co_return tl::unexpected(wishes.error());
  const auto fs_type = requested_fs_type(*request);
  auto reading = read_sources(ports, wishes->parameters, *fs_type);
  auto sources = co_await std::move(reading);
  if (!sources) co_return tl::unexpected(sources.error());
  if (auto served = check_served(sources->protocol); !served) co_return tl::unexpected(served.error());
  if (auto flags = check_mount_flags(*request, sources->resolved.filesystem); !flags)
    co_return tl::unexpected(flags.error());
  const auto& resolved = sources->resolved;
  const auto name = volume_name_for(request->name());
  auto id = make_volume_id(sources->store.spec.agent_ref, resolved.protocol.type(), resolved.backend.type(),
                           resolved.backend.pool(), *name);
  if (!id) co_return tl::unexpected(id.error());
  if (auto topology = check_topology(request->accessibility_requirements(), id->protocol_type); !topology)
    co_return tl::unexpected(topology.error());
  CreatePlan plan;
  plan.id = *id;
  plan.spec = spec_for(*id, *wishes, resolved);
  plan.origin[std::string(k_origin_store)] = sources->store.metadata.name;
  plan.origin[std::string(k_origin_protocol)] = sources->protocol.metadata.name;
  if (!sources->storage_class.empty()) plan.origin[std::string(k_origin_class)] = sources->storage_class;
  plan.blocked = not_ready(sources->store);
  if (const auto* ready = crd::find_condition(sources->store.status.conditions, "Ready"))
    plan.waits_for_agent = plan.blocked && ready->reason == k_agent_not_ready;
  plan.wishes = std::move(*wishes);
  co_return plan;
}

Task<Result<csi::GetCapacityResponse>> get_capacity(runtime::OperationContext context, Ports ports,
                                                    std::shared_ptr<const csi::GetCapacityRequest> request) {
  for (const auto& wire : request->volume_capabilities())
    if (auto capability = parse_capability(wire); !capability) co_return tl::unexpected(capability.error());
  const auto parameters = normalised_parameters(request->parameters());
  if (parameters.empty()) {
    if (request->has_accessible_topology() && !reaches(request->accessible_topology(), "nvmeof-tcp"))
      co_return csi::GetCapacityResponse();
    auto summing = total_capacity(ports);
    co_return co_await std::move(summing);
  }
  auto reading = read_sources(ports, parameters, std::string());
  auto sources = co_await std::move(reading);
  if (!sources && sources.error().reason == Reason::dependency_missing)
    co_return fail(Reason::not_found, sources.error().message, sources.error().details);
  if (!sources) co_return tl::unexpected(sources.error());
  if (request->has_accessible_topology() &&
      !reaches(request->accessible_topology(), sources->resolved.protocol.type()))
    co_return csi::GetCapacityResponse();
  auto leasing = lease_agent(std::move(context), ports, sources->store.spec.agent_ref);
  const auto lease = co_await std::move(leasing);
  if (!lease) co_return tl::unexpected(lease.error());
  pb::GetCapacityRequest question;
  question.set_backend_type(std::string(sources->resolved.backend.type()));
  question.set_pool(std::string(sources->resolved.backend.pool()));
  auto asking = ask<pb::GetCapacityResponse>(lease->client(), ports.executor, question,
                                             Deadline::after(k_capacity_call));
  auto answer = co_await std::move(asking);
  if (!answer) co_return tl::unexpected(answer.error());
  if (!answer->pool().error().empty())
    co_return fail(Reason::pool_missing, "pool " + question.pool() + " on agent " +
                                             sources->store.spec.agent_ref + ": " + answer->pool().error());
  csi::GetCapacityResponse response;
  response.set_available_capacity(to_int64(answer->pool().available_bytes()));
  response.mutable_maximum_volume_size()->set_value(to_int64(answer->maximum_volume_bytes()));
  co_return response;
}

}  // namespace pillar::controller
