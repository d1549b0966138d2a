#pragma once
// Delivers changes of the embedded store to watches, from one thread. Internal to crd/.

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "crd/sqlite_tables.hpp"

namespace pillar::crd::sqlite {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_;
};

/// One watch as the hub sees it.
struct Subscription {
  Subscription(Kind kind_wanted, std::string start, WatchHandler wanted)
      : kind(kind_wanted), from(std::move(start)), handler(std::move(wanted)) {}
  const Kind kind;
  const std::string from;
  WatchHandler handler;
  std::int64_t seen = -1;  ///< last revision delivered; hub thread only
  bool ended = false;      ///< hub thread only
  std::mutex running;      ///< held while a handler runs
  std::atomic<bool> cancelled{false};
};

/// The watching thread with its own connection.
class WatchHub {
 public:
  /// `database` must be a connection of its own.
  static Result<std::unique_ptr<WatchHub>> start(Database database, std::chrono::milliseconds fallback);
  ~WatchHub();
  WatchHub(const WatchHub&) = delete;
  WatchHub& operator=(const WatchHub&) = delete;

  std::unique_ptr<Watch> add(Kind kind, std::string from, WatchHandler handler);
  /// Tells the thread that something was committed.
  void poke();

 private:
  class Handle;
  WatchHub(Database database, std::chrono::milliseconds fallback);
  Result<void> prepare();

  void run();
  void wait();
  bool drain_inotify();
  void arm_inotify();
  void adopt_new();
  void start_one(Subscription& subscription);
  void deliver_changes();
  bool deliver_batch();
  void deliver(Subscription& subscription, const WatchEvent& event);
  void end(Subscription& subscription, const Error& error);
  void end_all(const Error& error);

  Database database_;
  const std::chrono::milliseconds fallback_;
  Reader reader_;
  Fd wake_;
  Fd inotify_;
  int wal_watch_ = -1;
  std::int64_t seen_ = 0;                 ///< last revision handed to the running subscriptions
  std::string data_version_;              ///< PRAGMA data_version at the last look
  std::chrono::milliseconds recheck_{0};  ///< next look after a write-ahead log event, 0: none due

  std::mutex mutex_;  ///< guards fresh_
  std::vector<std::shared_ptr<Subscription>> fresh_;
  std::list<std::shared_ptr<Subscription>> running_;  ///< hub thread only
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace pillar::crd::sqlite
