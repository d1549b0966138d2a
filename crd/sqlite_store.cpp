#include "crd/sqlite_store.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>

#include "crd/sqlite_db.hpp"
#include "crd/sqlite_tables.hpp"
#include "crd/sqlite_watch.hpp"
#include "crd/validation.hpp"
#include "messages/ids.hpp"

namespace pillar::crd {
namespace {

/// Most writes in one transaction: bounds what one failure takes with it.
constexpr std::size_t k_max_batch = 256;

/// One queued write: its verdict inside the transaction and who hears of it.
struct Write {
  std::function<Result<Object>(sqlite::Writer&)> apply;
  std::function<void(Result<Object>)> done;
};

/// Raised by `apply` when SQLite itself failed, as opposed to a verdict on the request.
bool is_broken(const Error& error) {
  return error.reason == Reason::store_unavailable || error.reason == Reason::state_corrupt;
}

tl::unexpected<Error> not_found(Kind kind, std::string_view name) {
  return fail(Reason::not_found, subject(kind, name) + " does not exist");
}

tl::unexpected<Error> conflict(const Object& stored, const std::string& why) {
  return fail(Reason::conflict, subject(stored) + " " + why + "; read it again and repeat",
              {{"resourceVersion", stored.metadata.resource_version}, {"uid", stored.metadata.uid}});
}

/// The stored object that `fresh` was read from, or why it is another one by now.
Result<Object> current(sqlite::Writer& writer, const Object& fresh) {
  auto stored = writer.find(fresh.kind, fresh.metadata.name);
  if (!stored) return tl::unexpected(stored.error());
  if (!*stored) return not_found(fresh.kind, fresh.metadata.name);
  const auto& have = (*stored)->metadata;
  const auto& want = fresh.metadata;
  if (want.resource_version.empty())
    return tl::unexpected(
        to_error(subject(fresh), {{"metadata.resourceVersion", "", "is required for an update"}}));
  if (!want.uid.empty() && want.uid != have.uid)
    return conflict(**stored, "was deleted and created again (uid " + want.uid + ", now " + have.uid + ")");
  if (want.resource_version != have.resource_version)
    return conflict(**stored, "has changed (resourceVersion " + want.resource_version + ", now " +
                                  have.resource_version + ")");
  return std::move(**stored);
}

Result<Object> apply_create(sqlite::Writer& writer, Object object) {
  const auto stored = writer.find(object.kind, object.metadata.name);
  if (!stored) return tl::unexpected(stored.error());
  if (*stored)
    return fail(Reason::already_exists, subject(object) + " exists already" +
                                            ((*stored)->metadata.deleting() ? " and is being deleted" : ""));
  object.metadata.uid = uuid_v4();
  object.metadata.generation = 1;
  object.metadata.creation_timestamp = timestamp_now();
  object.metadata.deletion_timestamp.clear();
  if (auto put = writer.put(object, WatchEvent::Type::added); !put) return tl::unexpected(put.error());
  return object;
}

/// Finalizers may only go once deletion has begun.
FieldErrors check_finalizers(const Object& stored, const Object& fresh) {
  FieldErrors errors;
  if (stored.metadata.deleting())
    for (const auto& one : fresh.metadata.finalizers)
      if (!stored.metadata.has_finalizer(one))
        errors.push_back(
            {"metadata.finalizers", "\"" + one + "\"", "cannot be added while the object is being deleted"});
  return errors;
}

Result<Object> apply_update(sqlite::Writer& writer, const Object& fresh) {
  auto stored = current(writer, fresh);
  if (!stored) return stored;
  auto admitted = admit(fresh, &*stored);
  if (!admitted) return tl::unexpected(to_error(subject(fresh), admitted.error()));
  if (const auto errors = check_finalizers(*stored, fresh); !errors.empty())
    return tl::unexpected(to_error(subject(fresh), errors));
  Object next = *stored;
  next.spec = admitted->spec;
  next.metadata.labels = fresh.metadata.labels;
  next.metadata.annotations = fresh.metadata.annotations;
  next.metadata.finalizers = fresh.metadata.finalizers;
  next.metadata.owner_references = fresh.metadata.owner_references;
  if (next == *stored) return stored;
  if (next.spec != stored->spec) ++next.metadata.generation;
  const bool last_finalizer_gone = next.metadata.deleting() && next.metadata.finalizers.empty();
  const auto written =
      last_finalizer_gone ? writer.erase(next) : writer.put(next, WatchEvent::Type::modified);
  if (!written) return tl::unexpected(written.error());
  return next;
}

Result<Object> apply_update_status(sqlite::Writer& writer, const Object& fresh) {
  auto stored = current(writer, fresh);
  if (!stored) return stored;
  auto status = admit_status(fresh, *stored);
  if (!status) return tl::unexpected(to_error(subject(fresh), status.error()));
  if (*status == stored->status) return stored;
  Object next = std::move(*stored);
  next.status = std::move(*status);
  if (auto put = writer.put(next, WatchEvent::Type::modified); !put) return tl::unexpected(put.error());
  return next;
}

Result<Object> apply_remove(sqlite::Writer& writer, Kind kind, const std::string& name,
                            const Preconditions& preconditions, bool& gone) {
  auto stored = writer.find(kind, name);
  if (!stored) return tl::unexpected(stored.error());
  if (!*stored) return not_found(kind, name);
  Object next = std::move(**stored);
  if (!preconditions.uid.empty() && preconditions.uid != next.metadata.uid)
    return conflict(next, "has another uid (" + next.metadata.uid + ", expected " + preconditions.uid + ")");
  if (!preconditions.resource_version.empty() &&
      preconditions.resource_version != next.metadata.resource_version)
    return conflict(next, "has changed (resourceVersion " + preconditions.resource_version + ", now " +
                              next.metadata.resource_version + ")");
  gone = next.metadata.finalizers.empty();
  if (!gone && next.metadata.deleting()) return next;
  if (!gone) {
    next.metadata.deletion_timestamp = timestamp_now();
    ++next.metadata.generation;  // as Kubernetes does: the wish has changed
  }
  const auto written = gone ? writer.erase(next) : writer.put(next, WatchEvent::Type::modified);
  if (!written) return tl::unexpected(written.error());
  return next;
}

/// A page token: revision of the first page and the last name seen.
std::string make_token(const std::string& revision, const std::string& name) { return revision + "/" + name; }

Result<Page> read_page(sqlite::Reader& reader, Kind kind, const ListOptions& options) {
  const auto slash = options.continue_token.find('/');
  if (!options.continue_token.empty() && slash == std::string::npos)
    return fail(Reason::invalid_argument,
                "continue token \"" + options.continue_token + "\" is none of ours");
  const auto after = options.continue_token.empty() ? "" : options.continue_token.substr(slash + 1);
  return reader.snapshot([&]() -> Result<Page> {
    const auto revision = reader.revision();
    if (!revision) return tl::unexpected(revision.error());
    auto items = reader.list(kind, after, options.limit == 0 ? 0 : options.limit + 1);
    if (!items) return tl::unexpected(items.error());
    Page page{std::move(*items), std::to_string(*revision), ""};
    if (!options.continue_token.empty()) page.resource_version = options.continue_token.substr(0, slash);
    if (options.limit != 0 && page.items.size() > options.limit) {
      page.items.pop_back();
      page.continue_token = make_token(page.resource_version, page.items.back().metadata.name);
    }
    return page;
  });
}

/// Makes the file with a private mode, so that SQLite does not make it world-readable.
Result<void> ensure_file(const SqliteOptions& options) {
  const int fd = ::open(options.path.c_str(), O_RDWR | O_CLOEXEC | (options.create ? O_CREAT : 0), 0600);
  if (fd >= 0) {
    ::close(fd);
    return {};
  }
  if (errno == ENOENT && !options.create)
    return fail(Reason::not_found, "store " + options.path +
                                       " does not exist; start pillar-controller once or "
                                       "check --store");
  const auto error = errno_error(errno, "store " + options.path);
  return fail(Reason::state_unwritable, error.message + "; the directory must exist and be writable");
}

}  // namespace

Result<std::string> sqlite_path(std::string_view url) {
  constexpr std::string_view k_scheme = "sqlite:";
  if (!url.starts_with(k_scheme))
    return fail(Reason::invalid_argument,
                "store \"" + std::string(url) + "\" is not of the form sqlite:///path");
  url.remove_prefix(k_scheme.size());
  if (url.starts_with("//")) {
    url.remove_prefix(2);
    if (!url.starts_with("/"))
      return fail(Reason::invalid_argument,
                  "store \"sqlite://" + std::string(url) + "\" names a host; write sqlite:///absolute/path");
  }
  if (url.empty()) return fail(Reason::invalid_argument, "store \"sqlite:\" lacks a path");
  return std::string(url);
}

// ---- threads -----------------------------------------------------------------------------------------

class SqliteStore::Impl {
 public:
  explicit Impl(SqliteOptions options) : options_(std::move(options)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (write_thread_.joinable()) write_thread_.join();
    if (read_thread_.joinable()) read_thread_.join();
  }

  Result<void> open() {
    options_.history = std::max<std::size_t>(options_.history, 1);
    if (auto made = ensure_file(options_); !made) return made;
    if (auto opened = open_connection(write_db_); !opened) return opened;
    if (auto ready = sqlite::prepare_schema(*write_db_, options_.check); !ready) return ready;
    auto writer = sqlite::Writer::make(*write_db_, options_.history);
    if (!writer) return tl::unexpected(writer.error());
    writer_ = std::move(*writer);
    if (auto opened = open_connection(read_db_); !opened) return opened;
    auto reader = sqlite::Reader::make(*read_db_);
    if (!reader) return tl::unexpected(reader.error());
    reader_ = std::move(*reader);
    auto watching = sqlite::Database::open(options_.path, options_.busy_timeout);
    if (!watching) return tl::unexpected(watching.error());
    auto hub = sqlite::WatchHub::start(std::move(*watching), options_.fallback_interval);
    if (!hub) return tl::unexpected(hub.error());
    hub_ = std::move(*hub);
    write_thread_ = std::thread([this] { write_loop(); });
    read_thread_ = std::thread([this] { read_loop(); });
    return {};
  }

  void enqueue(Write write) {
    {
      const std::lock_guard lock(mutex_);
      writes_.push_back(std::move(write));
    }
    changed_.notify_all();
  }
  void enqueue_read(std::function<void(sqlite::Reader&)> read) {
    {
      const std::lock_guard lock(mutex_);
      reads_.push_back(std::move(read));
    }
    changed_.notify_all();
  }
  sqlite::WatchHub& hub() { return *hub_; }
  Stats stats() const { return {writes_done_.load(), transactions_.load()}; }

 private:
  Result<void> open_connection(std::unique_ptr<sqlite::Database>& into) {
    auto opened = sqlite::Database::open(options_.path, options_.busy_timeout);
    if (!opened) return tl::unexpected(opened.error());
    into = std::make_unique<sqlite::Database>(std::move(*opened));  // statements keep its address
    return {};
  }

  void write_loop() {
    while (true) {
      std::vector<Write> batch;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !writes_.empty(); });
        if (writes_.empty()) return;
        const auto count = static_cast<std::ptrdiff_t>(std::min(writes_.size(), k_max_batch));
        std::move(writes_.begin(), writes_.begin() + count, std::back_inserter(batch));
        writes_.erase(writes_.begin(), writes_.begin() + count);
      }
      carry_out(batch);
    }
  }

  /// One transaction for the whole batch. Nobody is answered before it is durable; if SQLite fails, nothing
  /// of it happened and everybody hears why.
  void carry_out(std::vector<Write>& batch) {
    std::vector<Result<Object>> verdicts;
    std::optional<Error> broken;
    if (auto begun = writer_.begin(); !begun) broken = begun.error();
    for (std::size_t i = 0; i < batch.size() && !broken; ++i) {
      verdicts.push_back(batch[i].apply(writer_));
      if (!verdicts.back() && is_broken(verdicts.back().error())) broken = verdicts.back().error();
    }
    if (!broken)
      if (auto committed = writer_.commit(); !committed) broken = committed.error();
    if (broken) writer_.roll_back();
    ++transactions_;
    writes_done_ += batch.size();
    hub_->poke();
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch[i].done(broken ? tl::unexpected(*broken) : std::move(verdicts[i]));
  }

  void read_loop() {
    while (true) {
      std::function<void(sqlite::Reader&)> read;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !reads_.empty(); });
        if (reads_.empty()) return;
        read = std::move(reads_.front());
        reads_.pop_front();
      }
      read(reader_);
    }
  }

  SqliteOptions options_;
  std::unique_ptr<sqlite::Database> write_db_;
  std::unique_ptr<sqlite::Database> read_db_;
  sqlite::Writer writer_;
  sqlite::Reader reader_;
  std::unique_ptr<sqlite::WatchHub> hub_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::deque<Write> writes_;
  std::deque<std::function<void(sqlite::Reader&)>> reads_;
  bool stopping_ = false;

  std::atomic<std::uint64_t> writes_done_{0};
  std::atomic<std::uint64_t> transactions_{0};
  std::thread write_thread_;
  std::thread read_thread_;
};

// ---- interface ---------------------------------------------------------------------------------------

SqliteStore::SqliteStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SqliteStore::~SqliteStore() = default;

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(SqliteOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (auto opened = impl->open(); !opened) return tl::unexpected(opened.error());
  return std::unique_ptr<SqliteStore>(new SqliteStore(std::move(impl)));
}

SqliteStore::Stats SqliteStore::stats() const { return impl_->stats(); }

void SqliteStore::get(Kind kind, std::string name, Callback<Object> done) {
  impl_->enqueue_read([kind, name = std::move(name), done = std::move(done)](sqlite::Reader& reader) {
    auto found = reader.find(kind, name);
    if (!found)
      done(tl::unexpected(found.error()));
    else if (!*found)
      done(not_found(kind, name));
    else
      done(std::move(**found));
  });
}

void SqliteStore::list(Kind kind, ListOptions options, Callback<Page> done) {
  impl_->enqueue_read([kind, options = std::move(options), done = std::move(done)](sqlite::Reader& reader) {
    done(read_page(reader, kind, options));
  });
}

void SqliteStore::create(Object object, Callback<Object> done) {
  impl_->enqueue({[object = std::move(object)](sqlite::Writer& writer) -> Result<Object> {
                    auto admitted = admit_new(object);
                    if (!admitted) return tl::unexpected(to_error(subject(object), admitted.error()));
                    return apply_create(writer, std::move(*admitted));
                  },
                  std::move(done)});
}

void SqliteStore::update(Object object, Callback<Object> done) {
  impl_->enqueue(
      {[object = std::move(object)](sqlite::Writer& writer) { return apply_update(writer, object); },
       std::move(done)});
}

void SqliteStore::update_status(Object object, Callback<Object> done) {
  impl_->enqueue(
      {[object = std::move(object)](sqlite::Writer& writer) { return apply_update_status(writer, object); },
       std::move(done)});
}

void SqliteStore::remove(Kind kind, std::string name, Preconditions preconditions, Callback<Removed> done) {
  auto gone = std::make_shared<bool>(false);
  impl_->enqueue(
      {[=](sqlite::Writer& writer) { return apply_remove(writer, kind, name, preconditions, *gone); },
       [gone, done = std::move(done)](Result<Object> result) {
         if (result)
           done(Removed{std::move(*result), *gone});
         else
           done(tl::unexpected(result.error()));
       }});
}

std::unique_ptr<Watch> SqliteStore::watch(Kind kind, std::string from, WatchHandler handler) {
  return impl_->hub().add(kind, std::move(from), std::move(handler));
}

}  // namespace pillar::crd
