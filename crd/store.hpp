#pragma once
// Where resources live. One asynchronous interface with Kubernetes semantics: the embedded SQLite store
// (crd/sqlite_store.hpp) implements it, a Kubernetes client can too; unit/crd/store_conformance.hpp says what
// every implementation must do.
//
// Callbacks run on a thread of the store, exactly once, and must not block; they may call the store again.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crd/object.hpp"

namespace pillar::crd {

/// What must still hold when a removal is carried out; an empty member is not checked.
struct Preconditions {
  std::string uid;
  std::string resource_version;
};

/// Paging of a list.
struct ListOptions {
  std::size_t limit = 0;       ///< at most this many objects, 0: all
  std::string continue_token;  ///< from the page before, empty: start
};

/// Part of a list, ordered by name.
struct Page {
  std::vector<Object> items;
  /// Where a watch continues without a gap (state of the first page; later pages may be newer than it, a
  /// watch from here then repeats what they already show).
  std::string resource_version;
  std::string continue_token;  ///< empty: this was the last page
};

/// Outcome of a removal.
struct Removed {
  Object object;      ///< as last stored; when it is gone possibly only kind, name and uid
  bool gone = false;  ///< false: finalizers hold it, deletionTimestamp is set
};

/// One change, in the order of resource versions.
struct WatchEvent {
  enum class Type : std::uint8_t {
    added,
    modified,
    deleted,   ///< `object` is the last state, with the resource version of the deletion
    bookmark,  ///< the initial state is complete, or nothing new up to here; only metadata.resource_version
               ///< is set
  };
  Type type = Type::added;
  Object object;
};

/// What a watcher wants to hear. Both are called on one thread of the store, never concurrently.
struct WatchHandler {
  std::function<void(const WatchEvent&)> on_event;
  /// The watch ended by itself and delivers nothing more: VERSION_EXPIRED when the start lies before the kept
  /// history (list again, then watch from there), STORE_UNAVAILABLE otherwise.
  std::function<void(const Error&)> on_end;
};

/// A running watch. Destroying it ends it: no handler runs after the destructor has returned (the destructor
/// may be called from the handler itself). The store must outlive it.
class Watch {
 public:
  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  virtual ~Watch() = default;
};

/// See the head of this file. Every method may be called from any thread.
class Store {
 public:
  template <class T>
  using Callback = std::function<void(Result<T>)>;

  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// NOT_FOUND when there is none. A read that starts after a write was answered sees that write.
  virtual void get(Kind kind, std::string name, Callback<Object> done) = 0;
  /// All objects of a kind, by name.
  virtual void list(Kind kind, ListOptions options, Callback<Page> done) = 0;

  /// Stores a new object with uid, resourceVersion, creationTimestamp and generation 1. Defaults are applied
  /// and the rules of crd/validation.hpp checked. Its status is stored as given, so that a volume's record is
  /// complete in one write (the Kubernetes implementation does that in two, status second).
  /// ALREADY_EXISTS, INVALID_ARGUMENT.
  virtual void create(Object object, Callback<Object> done) = 0;
  /// Replaces spec, labels, annotations, finalizers and owner references; never touches status. Needs
  /// metadata.resourceVersion: CONFLICT (ABORTED) when the stored one or the uid (if given) differs. Equal
  /// content writes nothing. Removing the last finalizer of an object that is being deleted removes it.
  /// NOT_FOUND, INVALID_ARGUMENT (immutable fields, a finalizer added during deletion).
  virtual void update(Object object, Callback<Object> done) = 0;
  /// Replaces status and nothing else, under the same comparison. Equal content writes nothing.
  virtual void update_status(Object object, Callback<Object> done) = 0;
  /// Removes the object, or marks it with a deletionTimestamp while finalizers hold it. NOT_FOUND; CONFLICT
  /// when a precondition fails.
  virtual void remove(Kind kind, std::string name, Preconditions preconditions, Callback<Removed> done) = 0;

  /// Every change of a kind after resource version `from` (of a Page or an object). With an empty `from` the
  /// present objects come first as `added`, then a `bookmark`, then the changes.
  virtual std::unique_ptr<Watch> watch(Kind kind, std::string from, WatchHandler handler) = 0;
};

}  // namespace pillar::crd
