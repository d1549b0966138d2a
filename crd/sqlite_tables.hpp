#pragma once
// The tables of the embedded store and what is read from and written to them. Internal to crd/.
//
// objects  the present state, one row per object
// changes  the last changes by revision, without holes: what watches replay
// meta     revision: the last one given out

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crd/sqlite_db.hpp"
#include "crd/store.hpp"

namespace pillar::crd::sqlite {

/// One row of `changes`.
struct Change {
  std::int64_t revision = 0;
  Kind kind = Kind::agent;
  WatchEvent event;
};

/// Brings a fresh file to the present schema, or checks that the file is a store of ours of this schema and
/// undamaged. `check`: run the integrity check. Safe against another process doing the same.
Result<void> prepare_schema(Database& db, bool check);

/// Reads of one connection.
class Reader {
 public:
  static Result<Reader> make(Database& db);

  Result<std::int64_t> revision();
  Result<std::optional<Object>> find(Kind kind, std::string_view name);
  /// Objects of `kind` with a name after `after`, at most `limit` (0: all).
  Result<std::vector<Object>> list(Kind kind, std::string_view after, std::size_t limit);
  /// Changes with a revision over `after`, oldest first, at most `limit`.
  Result<std::vector<Change>> changes(std::int64_t after, std::size_t limit);
  /// Watches can start at this revision or later.
  Result<std::int64_t> oldest_start();
  /// Runs `body` in one read transaction, so that its reads agree.
  template <class F>
  auto snapshot(F body) -> decltype(body()) {
    if (auto begun = db_->exec("BEGIN"); !begun) return tl::unexpected(begun.error());
    auto out = body();
    if (auto ended = db_->exec("COMMIT"); !ended && out) out = tl::unexpected(ended.error());
    db_->roll_back();
    return out;
  }

 private:
  Database* db_ = nullptr;
  Statement revision_, find_, list_, changes_, oldest_;
};

/// Writes of one connection, inside BEGIN IMMEDIATE.
class Writer {
 public:
  static Result<Writer> make(Database& db, std::size_t history);

  Result<void> begin();
  Result<void> commit();
  void roll_back() { db_->roll_back(); }

  Result<std::optional<Object>> find(Kind kind, std::string_view name) { return reader_.find(kind, name); }
  /// Stores `object` under the next revision, which becomes its resource version.
  Result<void> put(Object& object, WatchEvent::Type type);
  /// Removes `object` under the next revision.
  Result<void> erase(Object& object);

 private:
  Result<void> log(const Object& object, WatchEvent::Type type, const std::string& body);

  Database* db_ = nullptr;
  Reader reader_;
  Statement put_, erase_, log_, prune_, save_revision_;
  std::int64_t revision_ = 0;
  std::int64_t begun_at_ = 0;
  std::int64_t history_ = 0;
};

/// Decimal resource version; -1 when the text is none.
std::int64_t parse_revision(std::string_view text);

}  // namespace pillar::crd::sqlite
