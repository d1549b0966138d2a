#pragma once
// The embedded store: one SQLite file, shared by the processes of one machine (controller, pillarctl). Same
// object model, comparison, validation and watch semantics as the Kubernetes API.
//
// Writes: one thread; all writes that wait go into one transaction with one fsync (write-ahead log,
// synchronous=FULL), each keeps its own verdict, and none is answered before the transaction is durable.
// Watches see the writes of other processes through inotify on the write-ahead log, without polling faster
// than a second.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "crd/store.hpp"

namespace pillar::crd {

struct SqliteOptions {
  std::string path;             ///< the file; made (0600) when missing, its directory must exist
  bool create = true;           ///< false: a missing file is NOT_FOUND
  bool check = true;            ///< integrity check while opening
  std::size_t history = 10000;  ///< changes kept for watches, at least 1
  std::chrono::milliseconds busy_timeout{5000};       ///< how long to wait for another process's write
  std::chrono::milliseconds fallback_interval{2000};  ///< look for changes even without inotify, >= 1 s
};

/// The path in "sqlite:///var/lib/x.db" (or "sqlite:relative.db"); INVALID_ARGUMENT for another scheme.
Result<std::string> sqlite_path(std::string_view url);

class SqliteStore final : public Store {
 public:
  /// Opens or makes the store. STATE_UNWRITABLE, STATE_LOCKED, STATE_CORRUPT (also: foreign file, other
  /// schema version), NOT_FOUND.
  static Result<std::unique_ptr<SqliteStore>> open(SqliteOptions options);
  /// Finishes the writes already accepted, answers them, then closes. Watches must be destroyed before.
  ~SqliteStore() override;

  void get(Kind kind, std::string name, Callback<Object> done) override;
  void list(Kind kind, ListOptions options, Callback<Page> done) override;
  void create(Object object, Callback<Object> done) override;
  void update(Object object, Callback<Object> done) override;
  void update_status(Object object, Callback<Object> done) override;
  void remove(Kind kind, std::string name, Preconditions preconditions, Callback<Removed> done) override;
  std::unique_ptr<Watch> watch(Kind kind, std::string from, WatchHandler handler) override;

  /// Counters since opening.
  struct Stats {
    std::uint64_t writes = 0;        ///< write calls answered
    std::uint64_t transactions = 0;  ///< transactions they took
  };
  Stats stats() const;

 private:
  class Impl;
  explicit SqliteStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pillar::crd
