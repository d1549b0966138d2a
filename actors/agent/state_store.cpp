#include "actors/agent/state_store.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <tuple>
#include <utility>

namespace pillar::agent {
namespace {

using nlohmann::json;

constexpr int k_meta_schema = 1;
constexpr int k_record_schema = 1;
constexpr std::string_view k_mark_suffix = ".mark";
constexpr std::string_view k_record_suffix = ".json";

std::string crc_text(const json& body) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", hostio::crc32c(body.dump()));
  return text.data();
}

std::string sealed(json body) {
  body["crc32c"] = crc_text(body);
  return body.dump() + "\n";
}

// Throws json::exception on anything that is not a sealed object.
json unsealed(std::string_view text) {
  json body = json::parse(text);
  const auto crc = body.at("crc32c").get<std::string>();
  body.erase("crc32c");
  if (crc != crc_text(body))
    throw json::other_error::create(500, "checksum does not match the content", &body);
  return body;
}

std::string new_epoch() {
  std::random_device source;
  std::array<char, 33> text{};
  for (std::size_t i = 0; i < 4; ++i) std::snprintf(text.data() + i * 8, 9, "%08x", source());
  return text.data();
}

Result<std::vector<std::string>> files_in(const std::string& directory, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(directory, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(suffix)) names.push_back(name);
  }
  if (error)
    return fail(Reason::io_error, "state directory " + directory + " cannot be listed: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool ExportRecord::same_export(const ExportRecord& other) const {
  const auto fields = [](const ExportRecord& r) {
    return std::tie(r.volume, r.token.volume_uid, r.bind_address, r.port, r.acl_enabled,
                    r.in_capsule_data_size, r.nqn, r.namespace_uuid, r.serial, r.initiators);
  };
  return fields(*this) == fields(other);
}

std::string record_file_name(const AgentVolumeId& volume) {
  return escape_file_name(volume.str()) + std::string(k_record_suffix);
}

std::string encode_record(const ExportRecord& record) {
  json initiators = json::array();
  for (const auto& initiator : record.initiators)
    initiators.push_back({{"hostNQN", initiator.host_nqn}, {"readonly", initiator.readonly}});
  return sealed({{"schema", k_record_schema},
                 {"volumeID", record.volume.str()},
                 {"uid", record.token.volume_uid},
                 {"generation", record.token.generation},
                 {"bindAddress", record.bind_address},
                 {"port", record.port},
                 {"aclEnabled", record.acl_enabled},
                 {"inCapsuleDataSize", record.in_capsule_data_size},
                 {"nqn", record.nqn},
                 {"namespaceUUID", record.namespace_uuid},
                 {"serial", record.serial},
                 {"initiators", std::move(initiators)}});
}

Result<ExportRecord> decode_record(std::string_view file_name, std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return fail(Reason::state_corrupt, "export record '" + std::string(file_name) + "': " + why);
  };
  try {
    const json body = unsealed(text);
    if (body.at("schema").get<int>() != k_record_schema) return bad("unknown schema");
    auto volume = AgentVolumeId::parse(body.at("volumeID").get<std::string>());
    if (!volume) return bad(volume.error().message);
    if (record_file_name(*volume) != file_name) return bad("it belongs to volume " + volume->str());
    ExportRecord record;
    record.volume = std::move(*volume);
    record.token = {body.at("uid").get<std::string>(), body.at("generation").get<std::uint64_t>()};
    record.bind_address = body.at("bindAddress").get<std::string>();
    record.port = body.at("port").get<std::uint16_t>();
    record.acl_enabled = body.at("aclEnabled").get<bool>();
    record.in_capsule_data_size = body.at("inCapsuleDataSize").get<std::uint32_t>();
    record.nqn = body.at("nqn").get<std::string>();
    record.namespace_uuid = body.at("namespaceUUID").get<std::string>();
    record.serial = body.at("serial").get<std::string>();
    for (const json& entry : body.at("initiators"))
      record.initiators.push_back({entry.at("hostNQN").get<std::string>(), entry.at("readonly").get<bool>()});
    return record;
  } catch (const json::exception& e) {
    return bad(e.what());
  }
}

StateStore::StateStore(std::string directory, hostio::DurableHook hook, hostio::DirectoryLock lock)
    : directory_(std::move(directory)), hook_(std::move(hook)), lock_(std::move(lock)) {}

Result<std::unique_ptr<StateStore>> StateStore::open(const std::string& directory, hostio::DurableHook hook) {
  if (auto made = hostio::ensure_state_directory(directory); !made) return tl::unexpected(made.error());
  auto lock = hostio::DirectoryLock::acquire(directory);
  if (!lock) return tl::unexpected(lock.error());
  std::unique_ptr<StateStore> store(new StateStore(directory, std::move(hook), std::move(*lock)));
  for (const std::string& part : {store->marks_directory(), store->records_directory()}) {
    if (auto made = hostio::ensure_state_directory(part); !made) return tl::unexpected(made.error());
    if (auto cleaned = hostio::remove_leftover_temps(part); !cleaned) return tl::unexpected(cleaned.error());
  }
  if (auto cleaned = hostio::remove_leftover_temps(directory); !cleaned)
    return tl::unexpected(cleaned.error());
  if (auto loaded = store->load(); !loaded) return tl::unexpected(loaded.error());
  return store;
}

Result<void> StateStore::load() {
  if (auto r = load_marks(); !r) return r;
  if (auto r = load_records(); !r) return r;
  return load_meta();
}

Result<void> StateStore::load_marks() {
  auto names = files_in(marks_directory(), k_mark_suffix);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    Entry& entry = marks_[name];
    auto text = hostio::read_file(marks_directory() + "/" + name);
    // Unreadable is not absent: nothing may be guessed about this volume.
    auto mark =
        text ? decode_mark(name, *text)
             : Result<Mark>(fail(Reason::mark_corrupt,
                                 "fencing mark '" + name + "' cannot be read: " + text.error().message));
    if (mark) {
      meta_.sequence = std::max(meta_.sequence, mark->sequence);
      entry.mark = std::move(*mark);
      continue;
    }
    spdlog::error("{}", mark.error().message);
    entry.corrupt = mark.error();
  }
  // A crash between rename and directory sync leaves names that are visible but not durable yet.
  hostio::DurableBatch sync(marks_directory());
  if (auto staged = sync.stage_removal("sync-barrier"); !staged) return staged;
  return sync.commit().front();
}

Result<void> StateStore::load_records() {
  auto names = files_in(records_directory(), k_record_suffix);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    auto text = hostio::read_file(records_directory() + "/" + name);
    auto record = text ? decode_record(name, *text) : Result<ExportRecord>(tl::unexpected(text.error()));
    // A cache: the controller's next complete set replaces what cannot be read.
    if (record)
      records_.emplace(record->volume, std::move(*record));
    else
      spdlog::warn("{}; ignored", record.error().message);
  }
  return {};
}

Result<void> StateStore::load_meta() {
  const std::string path = directory_ + "/meta.json";
  auto text = hostio::read_file(path);
  if (!text && text.error().reason != Reason::not_found && text.error().reason != Reason::state_corrupt)
    return tl::unexpected(text.error());
  if (text) {
    try {
      const json body = unsealed(*text);
      if (body.at("schema").get<int>() == k_meta_schema) {
        meta_.epoch = body.at("epoch").get<std::string>();
        meta_.sequence = std::max(meta_.sequence, body.at("sequence").get<std::uint64_t>());
        meta_.seeded = body.at("seeded").get<bool>();
        meta_.drained = body.at("drained").get<bool>();
        meta_.ticks = body.at("ticks").get<std::vector<std::uint64_t>>();
      }
    } catch (const json::exception& e) {
      spdlog::error("{}: {}; a new epoch begins and the controller has to seed the marks again", path,
                    e.what());
      meta_.epoch.clear();
    }
  }
  if (!meta_.epoch.empty()) return {};
  meta_.epoch = new_epoch();
  meta_.seeded = false;
  meta_.ticks.clear();
  return write_meta(meta_);
}

Result<void> StateStore::write_meta(const Meta& meta) {
  return hostio::write_file_durable(directory_ + "/meta.json",
                                    sealed({{"schema", k_meta_schema},
                                            {"epoch", meta.epoch},
                                            {"sequence", meta.sequence},
                                            {"seeded", meta.seeded},
                                            {"drained", meta.drained},
                                            {"ticks", meta.ticks}}),
                                    0600, hook_);
}

std::string StateStore::epoch() const {
  const std::lock_guard lock(data_);
  return meta_.epoch;
}

std::uint64_t StateStore::sequence() const {
  const std::lock_guard lock(data_);
  return meta_.sequence;
}

bool StateStore::seeded() const {
  const std::lock_guard lock(data_);
  return meta_.seeded;
}

bool StateStore::drained() const {
  const std::lock_guard lock(data_);
  return meta_.drained;
}

Result<void> StateStore::set_drained(bool drained) {
  const std::lock_guard writing(writing_);
  Meta meta;
  {
    const std::lock_guard lock(data_);
    meta = meta_;
  }
  meta.drained = drained;
  if (auto written = write_meta(meta); !written) return written;
  const std::lock_guard lock(data_);
  meta_.drained = drained;
  return {};
}

std::size_t StateStore::corrupt_marks() const {
  const std::lock_guard lock(data_);
  return static_cast<std::size_t>(std::count_if(
      marks_.begin(), marks_.end(), [](const auto& item) { return item.second.corrupt.has_value(); }));
}

Result<StoredMark> StateStore::mark(const AgentVolumeId& volume) const {
  const std::lock_guard lock(data_);
  StoredMark stored;
  stored.seeded = meta_.seeded;
  const auto it = marks_.find(mark_file_name(volume));
  if (it == marks_.end()) return stored;
  if (it->second.corrupt) return tl::unexpected(*it->second.corrupt);
  stored.mark = it->second.mark;
  stored.uncertain = it->second.uncertain;
  return stored;
}

// A request whose actor died between admission and writing must not undo what a later one has written.
Result<void> StateStore::may_replace(const Mark& mark) const {
  const std::lock_guard lock(data_);
  const auto it = marks_.find(mark_file_name(mark.volume));
  if (it == marks_.end()) return {};
  if (it->second.corrupt) return tl::unexpected(*it->second.corrupt);
  if (!it->second.mark || mark.advances(*it->second.mark)) return {};
  return fail(Reason::conflict, "the fencing mark of volume " + mark.volume.str() +
                                    " has moved on meanwhile; read the record again and repeat");
}

std::vector<Result<Mark>> StateStore::write_marks(std::vector<Mark> marks) {
  const std::lock_guard writing(writing_);
  std::uint64_t next = sequence();
  hostio::DurableBatch batch(marks_directory(), hook_);
  std::vector<Result<Mark>> results;
  std::vector<std::size_t> staged;
  std::set<AgentVolumeId> volumes;
  for (Mark& mark : marks) {
    if (auto allowed = may_replace(mark); !allowed) {
      results.emplace_back(tl::unexpected(allowed.error()));
      continue;
    }
    if (!volumes.insert(mark.volume).second) {
      results.emplace_back(fail(Reason::conflict, "two fencing marks of volume " + mark.volume.str() +
                                                      " arrived at once; repeat the call"));
      continue;
    }
    mark.sequence = ++next;
    auto done = batch.stage(mark_file_name(mark.volume), encode_mark(mark));
    if (done) {
      staged.push_back(results.size());
      results.emplace_back(std::move(mark));
    } else {
      results.emplace_back(tl::unexpected(done.error()));
      const std::lock_guard lock(data_);
      marks_[mark_file_name(mark.volume)].uncertain = true;
    }
  }
  const auto committed = batch.commit();
  const std::lock_guard lock(data_);
  for (std::size_t i = 0; i < staged.size(); ++i) {
    Result<Mark>& result = results[staged[i]];
    Entry& entry = marks_[mark_file_name(result->volume)];
    entry.uncertain = !committed[i];
    if (committed[i]) {
      entry.mark = *result;
      entry.corrupt.reset();
      meta_.sequence = std::max(meta_.sequence, result->sequence);
    } else {
      result = tl::unexpected(committed[i].error());
    }
  }
  return results;
}

Result<std::uint64_t> StateStore::seed_marks(const std::string& epoch, const std::vector<Seed>& seeds,
                                             std::uint64_t known_sequence) {
  if (epoch != this->epoch())
    return fail(Reason::epoch_unknown, "marks were sent for epoch '" + epoch + "', this agent's epoch is " +
                                           this->epoch() + "; read it with HealthCheck and seed again");
  std::vector<Mark> marks;
  for (const Seed& entry : seeds) {
    auto stored = mark(entry.volume);
    if (!stored) continue;  // MARK_CORRUPT stays: nothing is guessed over it
    auto next = seed(stored->mark, entry);
    if (!next) return tl::unexpected(next.error());
    if (*next)
      marks.push_back(std::move(**next));
    else if (stored->uncertain && stored->mark)
      marks.push_back(*stored->mark);
  }
  {
    const std::lock_guard lock(data_);
    meta_.sequence = std::max(meta_.sequence, known_sequence);
  }
  for (const auto& written : write_marks(std::move(marks)))
    if (!written) return tl::unexpected(written.error());
  const std::lock_guard writing(writing_);
  Meta meta;
  {
    const std::lock_guard lock(data_);
    meta = meta_;
  }
  meta.seeded = true;
  if (auto written = write_meta(meta); !written) return tl::unexpected(written.error());
  const std::lock_guard lock(data_);
  meta_.seeded = true;
  return meta_.sequence;
}

bool StateStore::note_known_sequence(const std::string& epoch, std::uint64_t sequence) {
  const std::lock_guard writing(writing_);
  Meta meta;
  {
    const std::lock_guard lock(data_);
    if (epoch != meta_.epoch || sequence <= meta_.sequence || !meta_.seeded) return false;
    meta_.seeded = false;
    meta = meta_;
  }
  spdlog::error(
      "the controller has seen sequence {} of this agent, recorded is {}: the state directory was restored "
      "from an older copy; every change is refused until the marks are seeded again",
      sequence, meta.sequence);
  // Unseeded in memory even when this cannot be written: after a restart the controller notices again.
  if (auto written = write_meta(meta); !written) spdlog::error("{}", written.error().message);
  return true;
}

Result<void> StateStore::tick() {
  const std::lock_guard writing(writing_);
  Meta meta;
  {
    const std::lock_guard lock(data_);
    meta = meta_;
  }
  meta.ticks.push_back(meta.sequence);
  if (meta.ticks.size() > k_tombstone_ticks) meta.ticks.erase(meta.ticks.begin());
  if (auto written = write_meta(meta); !written) return written;
  const std::lock_guard lock(data_);
  meta_.ticks = std::move(meta.ticks);
  return {};
}

Result<std::size_t> StateStore::prune_tombstones(const std::set<AgentVolumeId>& listed) {
  const std::lock_guard writing(writing_);
  std::vector<std::string> names;
  Meta meta;
  {
    const std::lock_guard lock(data_);
    meta = meta_;
    for (const auto& [name, entry] : marks_)
      if (entry.mark && !entry.uncertain &&
          tombstone_expired(*entry.mark, listed.count(entry.mark->volume) == 0, meta_.ticks,
                            k_tombstone_ticks))
        names.push_back(name);
  }
  if (names.empty()) return 0;
  // The sequence must not go back when the mark that carries the highest one is removed.
  if (auto written = write_meta(meta); !written) return tl::unexpected(written.error());
  hostio::DurableBatch batch(marks_directory(), hook_);
  for (const std::string& name : names)
    if (auto staged = batch.stage_removal(name); !staged) return tl::unexpected(staged.error());
  const auto results = batch.commit();
  const std::lock_guard lock(data_);
  std::size_t removed = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (results[i]) {
      marks_.erase(names[i]);
      ++removed;
    } else {
      marks_[names[i]].uncertain = true;
    }
  }
  return removed;
}

std::optional<ExportRecord> StateStore::record(const AgentVolumeId& volume) const {
  const std::lock_guard lock(data_);
  const auto it = records_.find(volume);
  if (it == records_.end()) return std::nullopt;
  return it->second;
}

std::vector<ExportRecord> StateStore::records() const {
  const std::lock_guard lock(data_);
  std::vector<ExportRecord> out;
  out.reserve(records_.size());
  for (const auto& [volume, record] : records_) out.push_back(record);
  return out;
}

std::optional<AgentVolumeId> StateStore::volume_of_nqn(const std::string& nqn) const {
  const std::lock_guard lock(data_);
  for (const auto& [volume, record] : records_)
    if (record.nqn == nqn) return volume;
  return std::nullopt;
}

std::vector<Result<void>> StateStore::write_records(const std::vector<RecordChange>& changes) {
  const std::lock_guard writing(writing_);
  hostio::DurableBatch batch(records_directory(), hook_);
  std::vector<Result<void>> results;
  std::vector<std::size_t> staged;
  for (const RecordChange& change : changes) {
    const std::string name = record_file_name(change.volume);
    results.push_back(change.record ? batch.stage(name, encode_record(*change.record))
                                    : batch.stage_removal(name));
    if (results.back()) staged.push_back(results.size() - 1);
  }
  const auto committed = batch.commit();
  const std::lock_guard lock(data_);
  for (std::size_t i = 0; i < staged.size(); ++i) {
    const RecordChange& change = changes[staged[i]];
    results[staged[i]] = committed[i];
    if (!committed[i]) continue;
    if (change.record)
      records_[change.volume] = *change.record;
    else
      records_.erase(change.volume);
  }
  return results;
}

}  // namespace pillar::agent
