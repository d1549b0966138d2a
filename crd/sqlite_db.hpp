#pragma once
// Thin ownership of SQLite connections and statements, with errors as values. Internal to crd/.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <sqlite3.h>

#include "messages/error.hpp"

namespace pillar::crd::sqlite {

/// What a SQLite failure means for the operator. While opening: STATE_LOCKED, STATE_UNWRITABLE,
/// STATE_CORRUPT; later: STORE_UNAVAILABLE (STATE_CORRUPT stays).
enum class When : std::uint8_t { opening, running };
Error describe_failure(sqlite3* db, int status, const std::string& path, When when);

/// A prepared statement. Bind, step until false, then reset (or let Use do it).
class Statement {
 public:
  Statement() = default;
  Statement(sqlite3* db, sqlite3_stmt* statement, std::string path)
      : db_(db), statement_(statement), path_(std::move(path)) {}

  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, std::string_view value);
  /// True: a row is there; false: done.
  Result<bool> step();
  /// Runs a statement that yields no rows, then resets it.
  Result<void> run();
  void reset();

  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string_view text(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  sqlite3* db_ = nullptr;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::string path_;
};

/// Resets a statement when the scope ends, so that it holds no read transaction open.
class Use {
 public:
  explicit Use(Statement& statement) : statement_(statement) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { statement_.reset(); }

 private:
  Statement& statement_;
};

/// One connection; used by one thread at a time.
class Database {
 public:
  static Result<Database> open(const std::string& path, std::chrono::milliseconds busy_timeout);

  /// Executes SQL without parameters.
  Result<void> exec(const char* sql, When when = When::running);
  Result<Statement> prepare(const char* sql, When when = When::running);
  /// First column of the first row of `sql` as text; empty when there is no row.
  Result<std::string> query(const char* sql, When when = When::running);
  /// Rolls back if a transaction is open.
  void roll_back();
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  std::unique_ptr<sqlite3, Close> db_;
  std::string path_;
};

}  // namespace pillar::crd::sqlite
