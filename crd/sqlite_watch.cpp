#include "crd/sqlite_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pillar::crd::sqlite {
namespace {

constexpr std::size_t k_batch = 500;

// The write-ahead log is written before it is synced, and only the sync makes the change visible, without a
// further event. After an event we therefore look again at growing intervals until a sync must be over; what
// takes longer is found by the fallback.
constexpr std::chrono::milliseconds k_first_recheck{1};
constexpr std::chrono::milliseconds k_last_recheck{512};

Error expired(const std::string& from) {
  return fail(Reason::version_expired, "resource version \"" + from +
                                           "\" is outside the kept history; list again and watch from there")
      .value();
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

/// What a caller of watch() holds.
class WatchHub::Handle final : public Watch {
 public:
  Handle(WatchHub& hub, std::shared_ptr<Subscription> subscription)
      : hub_(hub), subscription_(std::move(subscription)) {}
  ~Handle() override {
    subscription_->cancelled = true;
    if (std::this_thread::get_id() != hub_.thread_.get_id())
      const std::lock_guard wait_for_handler(subscription_->running);
    hub_.poke();
  }

 private:
  WatchHub& hub_;
  std::shared_ptr<Subscription> subscription_;
};

WatchHub::WatchHub(Database database, std::chrono::milliseconds fallback)
    : database_(std::move(database)),
      fallback_(std::max(fallback, std::chrono::milliseconds(1000))),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

Result<std::unique_ptr<WatchHub>> WatchHub::start(Database database, std::chrono::milliseconds fallback) {
  std::unique_ptr<WatchHub> hub(new WatchHub(std::move(database), fallback));
  if (auto ready = hub->prepare(); !ready) return tl::unexpected(ready.error());
  hub->thread_ = std::thread([raw = hub.get()] { raw->run(); });
  return hub;
}

Result<void> WatchHub::prepare() {
  if (wake_.get() < 0)
    return tl::unexpected(errno_error(errno, "eventfd for the watches of " + database_.path()));
  auto reader = Reader::make(database_);
  if (!reader) return tl::unexpected(reader.error());
  reader_ = std::move(*reader);
  const auto revision = reader_.revision();
  if (!revision) return tl::unexpected(revision.error());
  seen_ = *revision;
  arm_inotify();
  return {};
}

WatchHub::~WatchHub() {
  stopping_ = true;
  poke();
  if (thread_.joinable()) thread_.join();
}

void WatchHub::poke() {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is woken anyway.
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

std::unique_ptr<Watch> WatchHub::add(Kind kind, std::string from, WatchHandler handler) {
  auto subscription = std::make_shared<Subscription>(kind, std::move(from), std::move(handler));
  auto handle = std::make_unique<Handle>(*this, subscription);
  {
    const std::lock_guard lock(mutex_);
    fresh_.push_back(std::move(subscription));
  }
  poke();
  return handle;
}

void WatchHub::run() {
  while (!stopping_) {
    running_.remove_if([](const auto& one) { return one->cancelled.load() || one->ended; });
    adopt_new();
    const auto version = database_.query("PRAGMA data_version");
    if (!version)
      end_all(version.error());
    else if (*version != data_version_) {
      data_version_ = *version;
      deliver_changes();
    }
    wait();
  }
}

void WatchHub::wait() {
  if (wal_watch_ < 0) arm_inotify();
  const auto timeout = recheck_.count() > 0 ? recheck_ : fallback_;
  pollfd fds[] = {{wake_.get(), POLLIN, 0}, {inotify_.get(), POLLIN, 0}};
  poll(fds, 2, static_cast<int>(timeout.count()));
  std::uint64_t pokes = 0;
  [[maybe_unused]] const auto taken = read(wake_.get(), &pokes, sizeof pokes);
  if (drain_inotify())
    recheck_ = k_first_recheck;
  else if (recheck_.count() > 0)
    recheck_ = recheck_ >= k_last_recheck ? std::chrono::milliseconds(0) : recheck_ * 2;
}

bool WatchHub::drain_inotify() {
  bool any = false;
  alignas(inotify_event) char buffer[4096];
  while (true) {
    const auto length = read(inotify_.get(), buffer, sizeof buffer);
    if (length <= 0) return any;
    any = true;
    for (const char* at = buffer; at < buffer + length;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (event->wd == wal_watch_ && (event->mask & IN_IGNORED)) wal_watch_ = -1;
      at += sizeof(inotify_event) + event->len;
    }
  }
}

void WatchHub::arm_inotify() {
  // Without inotify (limits reached) the fallback interval still finds every change.
  wal_watch_ =
      inotify_add_watch(inotify_.get(), (database_.path() + "-wal").c_str(), IN_MODIFY | IN_DELETE_SELF);
}

void WatchHub::adopt_new() {
  std::vector<std::shared_ptr<Subscription>> fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(fresh_);
  }
  for (auto& one : fresh) {
    start_one(*one);
    running_.push_back(std::move(one));
  }
}

void WatchHub::start_one(Subscription& subscription) {
  std::vector<WatchEvent> events;
  const auto collect = [&]() -> Result<std::int64_t> {
    auto head = reader_.revision();
    if (!head) return head;
    if (subscription.from.empty()) {
      auto objects = reader_.list(subscription.kind, "", 0);
      if (!objects) return tl::unexpected(objects.error());
      for (auto& object : *objects) events.push_back({WatchEvent::Type::added, std::move(object)});
      WatchEvent bookmark{WatchEvent::Type::bookmark, {}};
      bookmark.object.kind = subscription.kind;
      bookmark.object.metadata.resource_version = std::to_string(*head);
      events.push_back(std::move(bookmark));
      return head;
    }
    auto oldest = reader_.oldest_start();
    if (!oldest) return oldest;
    const auto from = parse_revision(subscription.from);
    if (from < *oldest || from > *head) return tl::unexpected(expired(subscription.from));
    auto changes = reader_.changes(from, static_cast<std::size_t>(*head - from));
    if (!changes) return tl::unexpected(changes.error());
    for (auto& change : *changes)
      if (change.kind == subscription.kind) events.push_back(std::move(change.event));
    return head;
  };
  const auto head = reader_.snapshot(collect);
  if (!head) {
    end(subscription, head.error());
    return;
  }
  subscription.seen = *head;
  for (const auto& event : events) deliver(subscription, event);
}

void WatchHub::deliver_changes() {
  while (!stopping_ && deliver_batch()) {
  }
}

/// Delivers the next changes; true when there may be more.
bool WatchHub::deliver_batch() {
  const auto changes = reader_.changes(seen_, k_batch);
  if (!changes) {
    end_all(changes.error());
    return false;
  }
  if (changes->empty()) return false;
  // Revisions have no holes, so a gap means that history was pruned before we came to it.
  if (changes->front().revision != seen_ + 1) end_all(expired(std::to_string(seen_)));
  for (const auto& change : *changes) {
    for (const auto& one : running_)
      if (one->kind == change.kind && one->seen < change.revision) {
        one->seen = change.revision;
        deliver(*one, change.event);
      }
    seen_ = change.revision;
  }
  return changes->size() == k_batch;
}

void WatchHub::deliver(Subscription& subscription, const WatchEvent& event) {
  const std::lock_guard lock(subscription.running);
  if (!subscription.cancelled && !subscription.ended) subscription.handler.on_event(event);
}

void WatchHub::end(Subscription& subscription, const Error& error) {
  const std::lock_guard lock(subscription.running);
  if (!subscription.cancelled && !subscription.ended && subscription.handler.on_end)
    subscription.handler.on_end(error);
  subscription.ended = true;
}

void WatchHub::end_all(const Error& error) {
  for (const auto& one : running_) end(*one, error);
}

}  // namespace pillar::crd::sqlite
