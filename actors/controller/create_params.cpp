#include "actors/controller/create_params.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "actors/controller/records.hpp"

namespace pillar::controller {
namespace {

using nlohmann::json;

bool is_bookkeeping(std::string_view key) {
  return key.starts_with("csi.storage.k8s.io/pvc/") || key.starts_with("csi.storage.k8s.io/pv/");
}

std::string capability_text(const Capability& capability) {
  std::string text(to_string(capability.access));
  text += "/" + std::string(to_string(capability.mode));
  if (!capability.fs_type.empty()) text += "/" + capability.fs_type;
  return text;
}

std::string joined(const std::vector<std::string>& values) {
  std::string list;
  for (const auto& value : values) list += (list.empty() ? "" : ", ") + value;
  return list;
}

tl::unexpected<Error> differs(const crd::VolumeState& state, const std::string& what) {
  return fail(Reason::incompatible, "volume " + state.spec.volume_id + " exists already but " + what +
                                        "; use another name or repeat the original request");
}

Result<void> check_parameters(const crd::VolumeState& state, const CreateWishes& stored,
                              const CreateWishes& asked) {
  for (const auto& [key, value] : asked.parameters) {
    const auto found = stored.parameters.find(key);
    if (found == stored.parameters.end()) return differs(state, "without parameter " + key);
    if (found->second != value)
      return differs(state,
                     "with parameter " + key + " = '" + found->second + "', asked for '" + value + "'");
  }
  for (const auto& [key, value] : stored.parameters)
    if (!asked.parameters.contains(key))
      return differs(state, "with parameter " + key + " = '" + value + "', asked for none");
  return {};
}

}  // namespace

std::string to_text(const CreateWishes& wishes) {
  return json{{"required", wishes.size.required},
              {"limit", wishes.size.limit},
              {"capabilities", wishes.capabilities},
              {"parameters", wishes.parameters}}
      .dump();
}

Result<CreateWishes> wishes_from_text(std::string_view text) {
  const json value = json::parse(text, nullptr, false);
  try {
    CreateWishes wishes;
    wishes.size.required = value.at("required").get<std::uint64_t>();
    wishes.size.limit = value.at("limit").get<std::uint64_t>();
    wishes.capabilities = value.at("capabilities").get<std::vector<std::string>>();
    wishes.parameters = value.at("parameters").get<std::map<std::string, std::string>>();
    return wishes;
  } catch (const json::exception& error) {
    return fail(Reason::state_corrupt, "annotation " + std::string(k_annotation_request) +
                                           " does not hold a create request: " + error.what());
  }
}

std::map<std::string, std::string> normalised_parameters(
    const google::protobuf::Map<std::string, std::string>& parameters) {
  std::map<std::string, std::string> kept;
  for (const auto& [key, value] : parameters)
    if (!is_bookkeeping(key)) kept.emplace(key, value);
  return kept;
}

Result<std::string> requested_fs_type(const csi::CreateVolumeRequest& request) {
  std::string chosen;
  for (const auto& capability : request.volume_capabilities()) {
    const auto& fs_type = capability.mount().fs_type();
    if (fs_type.empty()) continue;
    if (!chosen.empty() && chosen != fs_type)
      return fail(Reason::invalid_argument, "volume capabilities name two file system types, " + chosen +
                                                " and " + fs_type + "; a volume has one");
    chosen = fs_type;
  }
  return chosen;
}

Result<CreateWishes> check_create_request(const csi::CreateVolumeRequest& request) {
  if (auto name = volume_name_for(request.name()); !name) return tl::unexpected(name.error());
  if (request.volume_capabilities().empty())
    return fail(Reason::invalid_argument, "volume_capabilities is empty; give at least one capability");
  CreateWishes wishes;
  for (const auto& wire : request.volume_capabilities()) {
    auto capability = parse_capability(wire);
    if (!capability) return tl::unexpected(capability.error());
    wishes.capabilities.push_back(capability_text(*capability));
  }
  std::sort(wishes.capabilities.begin(), wishes.capabilities.end());
  wishes.capabilities.erase(std::unique(wishes.capabilities.begin(), wishes.capabilities.end()),
                            wishes.capabilities.end());
  if (auto fs_type = requested_fs_type(request); !fs_type) return tl::unexpected(fs_type.error());
  if (!request.mutable_parameters().empty())
    return fail(Reason::invalid_argument, "mutable parameter '" +
                                              request.mutable_parameters().begin()->first +
                                              "' is not known; volumes of this driver have none");
  auto size =
      parse_size_range(request.capacity_range().required_bytes(), request.capacity_range().limit_bytes());
  if (!size) return tl::unexpected(size.error());
  wishes.size = *size;
  if (request.has_volume_content_source())
    return fail(Reason::not_found,
                "the content source does not exist: snapshots and clones are not offered by this driver");
  wishes.parameters = normalised_parameters(request.parameters());
  return wishes;
}

Result<void> check_compatible(const crd::VolumeState& state, const CreatePlan& plan) {
  if (state.spec.volume_id != plan.id.str())
    return differs(state, "the request leads to " + plan.id.str() + " (another store or protocol)");
  const auto annotation = state.metadata.annotations.find(std::string(k_annotation_request));
  if (annotation == state.metadata.annotations.end())
    return fail(Reason::state_corrupt, "record " + state.metadata.name + " has no annotation " +
                                           std::string(k_annotation_request) + "; restore it from a backup");
  const auto stored = wishes_from_text(annotation->second);
  if (!stored) return tl::unexpected(with_context(stored.error(), "record " + state.metadata.name));
  const auto bytes = state.status.capacity_bytes != 0
                         ? static_cast<std::uint64_t>(state.status.capacity_bytes)
                         : stored->size.required;
  if (!plan.wishes.size.admits(bytes))
    return differs(
        state, "has " + std::to_string(bytes) + " bytes, asked for at least " +
                   std::to_string(plan.wishes.size.required) +
                   (plan.wishes.size.limit == 0 ? std::string()
                                                : " and at most " + std::to_string(plan.wishes.size.limit)));
  if (stored->capabilities != plan.wishes.capabilities)
    return differs(state,
                   "for " + joined(stored->capabilities) + ", asked for " + joined(plan.wishes.capabilities));
  return check_parameters(state, *stored, plan.wishes);
}

crd::VolumeState new_record(const CreatePlan& plan) {
  crd::VolumeState state;
  state.metadata.name = record_name(plan.id);
  state.metadata.finalizers.emplace_back(k_volume_finalizer);
  state.metadata.annotations = plan.origin;
  state.metadata.annotations[std::string(k_annotation_request)] = to_text(plan.wishes);
  state.spec = plan.spec;
  state.status.phase = crd::VolumePhase::provisioning;
  state.status.publication_generation = 1;
  set_condition(state.status, k_ready, crd::ConditionStatus::no, "Provisioning");
  return state;
}

}  // namespace pillar::controller
