#include "crd/sqlite_tables.hpp"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

namespace pillar::crd::sqlite {
namespace {

// "PIL1" in the file header, so that a foreign database is never taken for ours.
constexpr const char* k_application_id = "1346981937";
constexpr const char* k_schema_version = "1";

constexpr const char* k_schema = R"sql(
  CREATE TABLE objects (
    kind INTEGER NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, name));
  CREATE TABLE changes (
    revision INTEGER PRIMARY KEY, kind INTEGER NOT NULL, type INTEGER NOT NULL, body TEXT NOT NULL);
  CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
  INSERT INTO meta VALUES ('revision', 0);
  PRAGMA application_id = 1346981937;
  PRAGMA user_version = 1;
)sql";

tl::unexpected<Error> not_ours(const Database& db, const std::string& why) {
  return fail(Reason::state_corrupt, "store " + db.path() + ": " + why);
}

/// Creates the tables, inside BEGIN IMMEDIATE, if nobody else has.
Result<void> create_tables(Database& db) {
  if (auto begun = db.exec("BEGIN IMMEDIATE", When::opening); !begun) return begun;
  const auto tables = db.query("SELECT count(*) FROM sqlite_master", When::opening);
  if (tables && *tables == "0")
    if (auto made = db.exec(k_schema, When::opening); !made) {
      db.roll_back();
      return made;
    }
  auto done = db.exec("COMMIT", When::opening);
  if (!done) db.roll_back();
  return done;
}

Result<void> check_identity(Database& db) {
  const auto id = db.query("PRAGMA application_id", When::opening);
  if (!id) return tl::unexpected(id.error());
  if (*id != k_application_id) return not_ours(db, "is a database of another program; choose another path");
  const auto version = db.query("PRAGMA user_version", When::opening);
  if (!version) return tl::unexpected(version.error());
  if (*version != k_schema_version)
    return not_ours(db, "has schema version " + *version + " but this program knows version " +
                            k_schema_version + "; use the program version that wrote it, or a newer one");
  return {};
}

Result<Object> parse_body(std::string_view body) {
  const auto value = nlohmann::json::parse(body, nullptr, false);
  // Not STATE_CORRUPT: one bad row must not fail the writes that share its transaction.
  if (value.is_discarded()) return fail(Reason::internal, "a stored object is not JSON; restore a backup");
  return object_from_json(value);
}

}  // namespace

Result<void> prepare_schema(Database& db, bool check) {
  const auto mode = db.query("PRAGMA journal_mode = WAL", When::opening);
  if (!mode) return tl::unexpected(mode.error());
  if (*mode != "wal")
    return fail(Reason::state_unwritable, "store " + db.path() +
                                              ": cannot use write-ahead logging (journal mode " + *mode +
                                              "); use a local, writable file system");
  if (auto set = db.exec("PRAGMA synchronous = FULL", When::opening); !set) return set;
  if (auto made = create_tables(db); !made) return made;
  if (auto ours = check_identity(db); !ours) return ours;
  if (!check) return {};
  auto verdict = db.query("PRAGMA quick_check(1)", When::opening);
  if (!verdict) return tl::unexpected(verdict.error());
  std::replace(verdict->begin(), verdict->end(), '\n', ' ');
  if (*verdict != "ok")
    return not_ours(db, "is damaged (" + *verdict + "); set it aside and restore a backup");
  return {};
}

std::int64_t parse_revision(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size() ? value : -1;
}

// ---- Reader ------------------------------------------------------------------------------------------

Result<Reader> Reader::make(Database& db) {
  Reader out;
  out.db_ = &db;
  const std::pair<Statement*, const char*> wanted[] = {
      {&out.revision_, "SELECT value FROM meta WHERE key = 'revision'"},
      {&out.find_, "SELECT body FROM objects WHERE kind = ?1 AND name = ?2"},
      {&out.list_, "SELECT body FROM objects WHERE kind = ?1 AND name > ?2 ORDER BY name LIMIT ?3"},
      {&out.changes_,
       "SELECT revision, kind, type, body FROM changes WHERE revision > ?1 ORDER BY revision LIMIT ?2"},
      {&out.oldest_, "SELECT min(revision) - 1 FROM changes"}};
  for (const auto& [statement, sql] : wanted) {
    auto made = db.prepare(sql, When::opening);
    if (!made) return tl::unexpected(made.error());
    *statement = std::move(*made);
  }
  return out;
}

Result<std::int64_t> Reader::revision() {
  const Use use(revision_);
  const auto row = revision_.step();
  if (!row) return tl::unexpected(row.error());
  return *row ? revision_.integer(0) : 0;
}

Result<std::optional<Object>> Reader::find(Kind kind, std::string_view name) {
  const Use use(find_);
  find_.bind(1, static_cast<std::int64_t>(kind)).bind(2, name);
  const auto row = find_.step();
  if (!row) return tl::unexpected(row.error());
  if (!*row) return std::optional<Object>();
  auto object = parse_body(find_.text(0));
  if (!object) return tl::unexpected(object.error());
  return std::optional<Object>(std::move(*object));
}

Result<std::vector<Object>> Reader::list(Kind kind, std::string_view after, std::size_t limit) {
  const Use use(list_);
  list_.bind(1, static_cast<std::int64_t>(kind)).bind(2, after);
  list_.bind(3, limit == 0 ? -1 : static_cast<std::int64_t>(limit));
  std::vector<Object> out;
  while (true) {
    const auto row = list_.step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return out;
    auto object = parse_body(list_.text(0));
    if (!object) return tl::unexpected(object.error());
    out.push_back(std::move(*object));
  }
}

Result<std::vector<Change>> Reader::changes(std::int64_t after, std::size_t limit) {
  const Use use(changes_);
  changes_.bind(1, after).bind(2, static_cast<std::int64_t>(limit));
  std::vector<Change> out;
  while (true) {
    const auto row = changes_.step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return out;
    auto object = parse_body(changes_.text(3));
    if (!object) return tl::unexpected(object.error());
    out.push_back({changes_.integer(0),
                   object->kind,
                   {static_cast<WatchEvent::Type>(changes_.integer(2)), std::move(*object)}});
  }
}

Result<std::int64_t> Reader::oldest_start() {
  const Use use(oldest_);
  const auto row = oldest_.step();
  if (!row) return tl::unexpected(row.error());
  return *row ? oldest_.integer(0) : 0;
}

// ---- Writer ------------------------------------------------------------------------------------------

Result<Writer> Writer::make(Database& db, std::size_t history) {
  Writer out;
  out.db_ = &db;
  out.history_ = static_cast<std::int64_t>(history);
  auto reader = Reader::make(db);
  if (!reader) return tl::unexpected(reader.error());
  out.reader_ = std::move(*reader);
  const std::pair<Statement*, const char*> wanted[] = {
      {&out.put_,
       "INSERT INTO objects VALUES (?1, ?2, ?3, ?4) "
       "ON CONFLICT (kind, name) DO UPDATE SET revision = ?3, body = ?4"},
      {&out.erase_, "DELETE FROM objects WHERE kind = ?1 AND name = ?2"},
      {&out.log_, "INSERT INTO changes VALUES (?1, ?2, ?3, ?4)"},
      {&out.prune_, "DELETE FROM changes WHERE revision <= ?1"},
      {&out.save_revision_, "UPDATE meta SET value = ?1 WHERE key = 'revision'"}};
  for (const auto& [statement, sql] : wanted) {
    auto made = db.prepare(sql, When::opening);
    if (!made) return tl::unexpected(made.error());
    *statement = std::move(*made);
  }
  return out;
}

Result<void> Writer::begin() {
  if (auto begun = db_->exec("BEGIN IMMEDIATE"); !begun) return begun;
  const auto revision = reader_.revision();
  if (!revision) return tl::unexpected(revision.error());
  revision_ = begun_at_ = *revision;
  return {};
}

Result<void> Writer::commit() {
  if (revision_ == begun_at_) {  // nothing changed: no write, no fsync
    db_->roll_back();
    return {};
  }
  if (auto saved = save_revision_.bind(1, revision_).run(); !saved) return saved;
  if (auto pruned = prune_.bind(1, revision_ - history_).run(); !pruned) return pruned;
  return db_->exec("COMMIT");
}

Result<void> Writer::put(Object& object, WatchEvent::Type type) {
  object.metadata.resource_version = std::to_string(++revision_);
  const auto body = Doc::of(to_json(object)).dump();
  put_.bind(1, static_cast<std::int64_t>(object.kind)).bind(2, object.metadata.name);
  put_.bind(3, revision_).bind(4, body);
  if (auto stored = put_.run(); !stored) return stored;
  return log(object, type, body);
}

Result<void> Writer::erase(Object& object) {
  object.metadata.resource_version = std::to_string(++revision_);
  erase_.bind(1, static_cast<std::int64_t>(object.kind)).bind(2, object.metadata.name);
  if (auto erased = erase_.run(); !erased) return erased;
  return log(object, WatchEvent::Type::deleted, Doc::of(to_json(object)).dump());
}

Result<void> Writer::log(const Object& object, WatchEvent::Type type, const std::string& body) {
  log_.bind(1, revision_).bind(2, static_cast<std::int64_t>(object.kind));
  log_.bind(3, static_cast<std::int64_t>(type)).bind(4, body);
  return log_.run();
}

}  // namespace pillar::crd::sqlite
