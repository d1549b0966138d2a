#pragma once
// Changes of the host that are under way in a thread. They outlive the actor that began them: a killed
// actor's successor must not start another change of the same object before the old one has returned.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace pillar::agent {

/// What kind of change is under way.
enum class ChangeKind : std::uint8_t { configure, barrier, pool };

/// The table of changes, by object. Thread-safe.
class InFlight : public std::enable_shared_from_this<InFlight> {
 public:
  /// One change; ends with release() or with the last copy of its pointer.
  class Hold {
   public:
    Hold(std::shared_ptr<InFlight> table, std::string key) : table_(std::move(table)), key_(std::move(key)) {}
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { release(); }
    /// The change has returned. Call before its result is delivered, so that the next step finds the table
    /// free.
    void release() {
      if (auto table = std::exchange(table_, nullptr)) table->end(key_);
    }

   private:
    std::shared_ptr<InFlight> table_;
    std::string key_;
  };

  /// Enters a change of `key`; null while another one is under way.
  std::shared_ptr<Hold> begin(const std::string& key, ChangeKind kind) {
    const std::lock_guard lock(mutex_);
    if (!changes_.emplace(key, kind).second) return nullptr;
    return std::make_shared<Hold>(shared_from_this(), key);
  }
  /// The change under way at `key`.
  std::optional<ChangeKind> busy(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto it = changes_.find(key);
    if (it == changes_.end()) return std::nullopt;
    return it->second;
  }

 private:
  void end(const std::string& key) {
    const std::lock_guard lock(mutex_);
    changes_.erase(key);
  }

  mutable std::mutex mutex_;
  std::map<std::string, ChangeKind> changes_;
};

}  // namespace pillar::agent
