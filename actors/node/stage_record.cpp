#include "actors/node/stage_record.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "hostio/durable_file.hpp"
#include "messages/ids.hpp"

namespace pillar::node {
namespace {

using nlohmann::json;

constexpr int k_schema = 1;

constexpr std::array<std::pair<Phase, std::string_view>, 5> k_phases{{{Phase::intent, "intent"},
                                                                      {Phase::attached, "attached"},
                                                                      {Phase::formatting, "formatting"},
                                                                      {Phase::mounted, "mounted"},
                                                                      {Phase::unstaging, "unstaging"}}};
constexpr std::array<std::pair<StagingState, std::string_view>, 3> k_states{
    {{StagingState::staging, "staging"},
     {StagingState::staged, "staged"},
     {StagingState::unstaging, "unstaging"}}};

template <class Table, class E>
std::string_view name_of(const Table& table, E value) {
  for (const auto& [each, name] : table)
    if (each == value) return name;
  return "unknown";
}

// json's own exceptions carry a bad value out of decode_fields; decode() turns them into an Error.
template <class Table>
auto value_of(const Table& table, const std::string& name) {
  for (const auto& [each, text] : table)
    if (text == name) return each;
  throw std::invalid_argument("unknown value '" + name + "'");
}

std::string checksum(const json& body) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::uint32_t crc = hostio::crc32c(body.dump());
  std::string text(8, '0');
  for (auto at = text.rbegin(); at != text.rend(); ++at, crc >>= 4U) *at = digits[crc & 15U];
  return text;
}

json encode_number(const std::optional<hostio::DeviceNumber>& number) {
  return number ? json(number->str()) : json(nullptr);
}

std::optional<hostio::DeviceNumber> decode_number(const json& value) {
  if (value.is_null()) return std::nullopt;
  auto number = hostio::DeviceNumber::parse(value.get<std::string>());
  if (!number) throw std::invalid_argument("bad device number");
  return number;
}

json encode_usage(const Usage& usage) {
  return {{"mode", to_string(usage.mode)},
          {"accessMode", to_string(usage.access)},
          {"fsType", usage.fs_type},
          {"mountOptions", usage.mount_options},
          {"readonly", usage.readonly}};
}

AccessMode decode_access(const json& value) {
  const auto mode = access_mode_from(value.get<std::string>());
  if (mode == AccessMode::unknown) throw std::invalid_argument("unknown access mode");
  return mode;
}

Usage decode_usage(const json& value) {
  Usage usage;
  const auto mode = value.at("mode").get<std::string>();
  if (mode != "mount" && mode != "block") throw std::invalid_argument("unknown volume mode");
  usage.mode = mode == "block" ? VolumeMode::block : VolumeMode::mount;
  usage.access = decode_access(value.at("accessMode"));
  usage.fs_type = value.at("fsType").get<std::string>();
  usage.mount_options = value.at("mountOptions").get<std::string>();
  usage.readonly = value.at("readonly").get<bool>();
  return usage;
}

json encode_session(const SessionTarget& session) {
  return {{"type", session.type},
          {"nqn", session.nqn},
          {"address", session.address},
          {"port", session.port},
          {"namespaceUUID", session.namespace_uuid}};
}

SessionTarget decode_session(const json& value) {
  SessionTarget session;
  session.type = value.at("type").get<std::string>();
  session.nqn = value.at("nqn").get<std::string>();
  session.address = value.at("address").get<std::string>();
  session.port = value.at("port").get<std::uint16_t>();
  session.namespace_uuid = value.at("namespaceUUID").get<std::string>();
  // The NQN reaches sysfs look-ups and the fabrics device.
  if (!is_valid_nqn(session.nqn)) throw std::invalid_argument("bad NQN");
  return session;
}

json encode_body(const StageRecord& record) {
  json stagings = json::array();
  for (const auto& each : record.stagings)
    stagings.push_back(
        {{"path", each.path}, {"state", to_string(each.state)}, {"device", encode_number(each.device)}});
  json publications = json::array();
  for (const auto& each : record.publications)
    publications.push_back({{"target", each.target},
                            {"readonly", each.readonly},
                            {"accessMode", to_string(each.access)},
                            {"bound", each.bound}});
  json device = nullptr;
  if (record.device)
    device = {{"path", record.device->node}, {"number", encode_number(record.device->number)}};
  return {{"schema", k_schema},
          {"volumeID", record.volume_id},
          {"phase", to_string(record.phase)},
          {"usage", encode_usage(record.usage)},
          {"protocol", encode_session(record.session)},
          {"device", device},
          {"stagings", stagings},
          {"publications", publications},
          {"marker", record.marker},
          {"generation", record.generation},
          {"bootID", record.boot_id}};
}

StageRecord decode_body(const json& body) {
  StageRecord record;
  record.volume_id = body.at("volumeID").get<std::string>();
  record.phase = value_of(k_phases, body.at("phase").get<std::string>());
  record.usage = decode_usage(body.at("usage"));
  record.session = decode_session(body.at("protocol"));
  if (const auto& device = body.at("device"); !device.is_null()) {
    const auto number = decode_number(device.at("number"));
    if (!number) throw std::invalid_argument("device without number");
    record.device = RecordedDevice{device.at("path").get<std::string>(), *number};
  }
  for (const auto& each : body.at("stagings"))
    record.stagings.push_back(Staging{each.at("path").get<std::string>(),
                                      value_of(k_states, each.at("state").get<std::string>()),
                                      decode_number(each.at("device"))});
  for (const auto& each : body.at("publications"))
    record.publications.push_back(
        Publication{each.at("target").get<std::string>(), each.at("readonly").get<bool>(),
                    decode_access(each.at("accessMode")), each.at("bound").get<bool>()});
  record.marker = body.at("marker").get<std::string>();
  record.generation = body.at("generation").get<std::uint64_t>();
  record.boot_id = body.at("bootID").get<std::string>();
  return record;
}

tl::unexpected<Error> corrupt(std::string_view file_name, const std::string& why) {
  return fail(Reason::state_corrupt, "stage record " + std::string(file_name) + " is not usable: " + why);
}

}  // namespace

std::string_view to_string(Phase phase) { return name_of(k_phases, phase); }
std::string_view to_string(StagingState state) { return name_of(k_states, state); }

Staging* StageRecord::find_staging(std::string_view path) {
  const auto at =
      std::find_if(stagings.begin(), stagings.end(), [&](auto& each) { return each.path == path; });
  return at == stagings.end() ? nullptr : &*at;
}

const Staging* StageRecord::find_staging(std::string_view path) const {
  const auto at =
      std::find_if(stagings.begin(), stagings.end(), [&](auto& each) { return each.path == path; });
  return at == stagings.end() ? nullptr : &*at;
}

const Publication* StageRecord::find_publication(std::string_view target) const {
  const auto at = std::find_if(publications.begin(), publications.end(),
                               [&](const auto& each) { return each.target == target; });
  return at == publications.end() ? nullptr : &*at;
}

void StageRecord::put_publication(Publication publication) {
  drop_publication(publication.target);
  publications.push_back(std::move(publication));
}

void StageRecord::drop_publication(std::string_view target) {
  std::erase_if(publications, [&](const auto& each) { return each.target == target; });
}

void StageRecord::drop_staging(std::string_view path) {
  std::erase_if(stagings, [&](const auto& each) { return each.path == path; });
}

bool StageRecord::any_staged() const {
  return std::any_of(stagings.begin(), stagings.end(),
                     [](const auto& each) { return each.state == StagingState::staged; });
}

bool StageRecord::used(hostio::DeviceNumber number) const {
  if (device && device->number == number) return true;
  return std::any_of(stagings.begin(), stagings.end(),
                     [&](const auto& each) { return each.device && *each.device == number; });
}

std::string record_file_name(std::string_view volume_id) { return sha256_hex(volume_id) + ".json"; }

std::string encode(const StageRecord& record) {
  json body = encode_body(record);
  body["crc32c"] = checksum(body);
  return body.dump(2) + "\n";
}

Result<StageRecord> decode(std::string_view text, std::string_view file_name) {
  try {
    json body = json::parse(text);
    const auto sum = body.at("crc32c").get<std::string>();
    body.erase("crc32c");
    if (checksum(body) != sum) return corrupt(file_name, "its checksum does not match");
    const int schema = body.at("schema").get<int>();
    if (schema != k_schema) return corrupt(file_name, "schema " + std::to_string(schema) + " is not known");
    StageRecord record = decode_body(body);
    if (!file_name.empty() && record_file_name(record.volume_id) != file_name)
      return corrupt(file_name, "it belongs to volume '" + record.volume_id + "'");
    return record;
  } catch (const std::exception& failure) {
    return corrupt(file_name, failure.what());
  }
}

}  // namespace pillar::node
