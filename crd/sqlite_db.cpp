#include "crd/sqlite_db.hpp"

#include <cerrno>
#include <cstring>

namespace pillar::crd::sqlite {
namespace {

/// The part of a message that says what to do.
std::string remedy(int primary, int system_errno) {
  switch (primary) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another process holds it; stop that process or try again";
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return "it is not writable; check owner, mode and whether the file system is read-only";
    case SQLITE_CANTOPEN:
      return "check that the directory exists and is writable";
    case SQLITE_FULL:
      return "the file system is full; free some space";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "it is damaged or no store of ours; set it aside and restore a backup";
    case SQLITE_IOERR:
      if (system_errno == ENOSPC || system_errno == EDQUOT) return "the file system is full; free some space";
      return system_errno == 0 ? "check the disk"
                               : std::string(std::strerror(system_errno)) + "; check the disk";
    default:
      return "unexpected; please report it";
  }
}

Reason reason_of(int primary, When when) {
  if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB) return Reason::state_corrupt;
  if (when == When::running) return Reason::store_unavailable;
  if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED) return Reason::state_locked;
  return Reason::state_unwritable;
}

}  // namespace

Error describe_failure(sqlite3* db, int status, const std::string& path, When when) {
  const int primary = status & 0xFF;
  const int system_errno = db ? sqlite3_system_errno(db) : 0;
  return fail(reason_of(primary, when), "store " + path + ": " +
                                            (db ? sqlite3_errmsg(db) : sqlite3_errstr(status)) + " (" +
                                            std::to_string(status) + "): " + remedy(primary, system_errno))
      .value();
}

Statement& Statement::bind(int index, std::int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
  return *this;
}

Statement& Statement::bind(int index, std::string_view value) {
  sqlite3_bind_text64(statement_.get(), index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

Result<bool> Statement::step() {
  const int status = sqlite3_step(statement_.get());
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) return false;
  auto error = describe_failure(db_, status, path_, When::running);
  reset();
  return tl::unexpected(std::move(error));
}

Result<void> Statement::run() {
  const Use use(*this);
  const auto stepped = step();
  if (!stepped) return tl::unexpected(stepped.error());
  return {};
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return data ? std::string_view(data,
                                 static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column)))
              : std::string_view();
}

Result<Database> Database::open(const std::string& path, std::chrono::milliseconds busy_timeout) {
  Database out;
  out.path_ = path;
  sqlite3* raw = nullptr;
  const int status = sqlite3_open_v2(
      path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  out.db_.reset(raw);
  if (status != SQLITE_OK) return tl::unexpected(describe_failure(raw, status, path, When::opening));
  sqlite3_busy_timeout(raw, static_cast<int>(busy_timeout.count()));
  return out;
}

Result<void> Database::exec(const char* sql, When when) {
  const int status = sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr);
  if (status != SQLITE_OK) return tl::unexpected(describe_failure(db_.get(), status, path_, when));
  return {};
}

Result<Statement> Database::prepare(const char* sql, When when) {
  sqlite3_stmt* raw = nullptr;
  const int status = sqlite3_prepare_v3(db_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (status != SQLITE_OK) return tl::unexpected(describe_failure(db_.get(), status, path_, when));
  return Statement(db_.get(), raw, path_);
}

Result<std::string> Database::query(const char* sql, When when) {
  sqlite3_stmt* raw = nullptr;
  int status = sqlite3_prepare_v2(db_.get(), sql, -1, &raw, nullptr);
  Statement statement(db_.get(), raw, path_);
  std::string out;
  if (status == SQLITE_OK) {
    status = sqlite3_step(raw);
    if (status == SQLITE_ROW) out = statement.text(0);
  }
  if (status != SQLITE_ROW && status != SQLITE_DONE && status != SQLITE_OK)
    return tl::unexpected(describe_failure(db_.get(), status, path_, when));
  return out;
}

void Database::roll_back() {
  if (db_ && sqlite3_get_autocommit(db_.get()) == 0)
    sqlite3_exec(db_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

}  // namespace pillar::crd::sqlite
