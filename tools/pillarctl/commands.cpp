#include "tools/pillarctl/commands.hpp"

#include <condition_variable>
#include <iostream>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

#include "crd/kube/store.hpp"
#include "crd/schema.hpp"
#include "crd/sqlite_store.hpp"
#include "crd/types.hpp"
#include "messages/deadline.hpp"
#include "messages/ids.hpp"
#include "tools/pillarctl/cli.hpp"
#include "tools/pillarctl/manifest.hpp"
#include "tools/pillarctl/output.hpp"
#include "tools/pillarctl/repair.hpp"
#include "tools/pillarctl/store_call.hpp"

namespace pillar::pillarctl {
namespace {

constexpr int k_done = 0;
constexpr int k_failed = 1;
constexpr int k_usage = 2;
/// An apply that keeps losing against other writers gives up after so many rounds.
constexpr int k_apply_rounds = 20;

Result<crd::Object> get(crd::Store& store, crd::Kind kind, const std::string& name) {
  return answer_of<crd::Object>([&](auto done) { store.get(kind, name, std::move(done)); });
}

std::int64_t now_seconds() { return crd::timestamp_seconds(crd::timestamp_now()).value_or(0); }

/// Where output goes, and whether everything went well.
struct Session {
  std::istream& input;
  std::ostream& out;
  std::ostream& err;
  int status = k_done;

  void fail_with(const std::string& message) {
    err << "error: " << message << "\n";
    status = k_failed;
  }
};

// ---- apply -------------------------------------------------------------------------------------------

/// The stored object with what the manifest says: spec replaced, labels and annotations merged.
crd::Object merged(const crd::Object& stored, const crd::Object& wanted) {
  crd::Object out = stored;
  out.spec = wanted.spec;
  for (const auto& [key, value] : wanted.metadata.labels) out.metadata.labels[key] = value;
  for (const auto& [key, value] : wanted.metadata.annotations) out.metadata.annotations[key] = value;
  if (!wanted.metadata.resource_version.empty())
    out.metadata.resource_version = wanted.metadata.resource_version;
  if (!wanted.metadata.uid.empty()) out.metadata.uid = wanted.metadata.uid;
  return out;
}

/// One manifest; "created", "configured" or "unchanged". Every write is one compare-and-swap, so an
/// interrupted apply is completed by running it again.
Result<std::string> apply_one(crd::Store& store, const crd::Object& wanted) {
  Result<crd::Object> written = fail(Reason::conflict, "not tried");
  for (int round = 0; round < k_apply_rounds; ++round) {
    const auto stored = get(store, wanted.kind, wanted.metadata.name);
    if (!stored && stored.error().reason != Reason::not_found) return tl::unexpected(stored.error());
    if (!stored) {
      crd::Object fresh = wanted;
      fresh.metadata.finalizers.clear();
      written = answer_of<crd::Object>([&](auto done) { store.create(fresh, std::move(done)); });
      if (written) return std::string("created");
      if (written.error().reason != Reason::already_exists) return tl::unexpected(written.error());
      continue;
    }
    written =
        answer_of<crd::Object>([&](auto done) { store.update(merged(*stored, wanted), std::move(done)); });
    if (written)
      return std::string(written->metadata.resource_version == stored->metadata.resource_version
                             ? "unchanged"
                             : "configured");
    const bool pinned = !wanted.metadata.resource_version.empty() || !wanted.metadata.uid.empty();
    if (pinned || (written.error().reason != Reason::conflict && written.error().reason != Reason::not_found))
      return tl::unexpected(written.error());
  }
  return tl::unexpected(written.error());
}

std::optional<std::vector<Manifest>> manifests_of(const Invocation& asked, Session& session) {
  auto manifests = load_manifests(asked.files, session.input);
  if (manifests) return std::move(*manifests);
  for (const auto& problem : manifests.error()) session.fail_with(problem);
  return std::nullopt;
}

void apply(const std::vector<Manifest>& manifests, crd::Store& store, Session& session) {
  for (const auto& manifest : manifests) {
    const auto result = apply_one(store, manifest.object);
    if (result) {
      session.out << resource_name(manifest.object) << " " << *result << std::endl;
      continue;
    }
    const auto field = result.error().details.find("field");
    session.fail_with(manifest.at(field == result.error().details.end() ? "" : field->second) + ": " +
                      result.error().message);
  }
}

void validate(const Invocation& asked, Session& session) {
  const auto manifests = manifests_of(asked, session);
  if (!manifests) return;
  for (const auto& manifest : *manifests) session.out << resource_name(manifest.object) << " valid\n";
}

// ---- get, describe -----------------------------------------------------------------------------------

/// The objects asked for; missing ones are reported.
std::vector<crd::Object> collect(const Invocation& asked, crd::Store& store, Session& session) {
  std::vector<crd::Object> out;
  for (const auto& target : asked.targets) {
    if (target.name.empty()) {
      auto page = answer_of<crd::Page>([&](auto done) { store.list(target.kind, {}, std::move(done)); });
      if (page)
        out.insert(out.end(), page->items.begin(), page->items.end());
      else
        session.fail_with(page.error().message);
      continue;
    }
    auto object = get(store, target.kind, target.name);
    if (object)
      out.push_back(std::move(*object));
    else if (object.error().reason != Reason::not_found || !asked.ignore_not_found)
      session.fail_with(object.error().message);
  }
  return out;
}

nlohmann::json as_one(const std::vector<crd::Object>& objects, bool single) {
  if (single && objects.size() == 1) return crd::to_json(objects.front());
  auto items = nlohmann::json::array();
  for (const auto& object : objects) items.push_back(crd::to_json(object));
  return {{"apiVersion", "v1"}, {"kind", "List"}, {"items", std::move(items)}};
}

/// One table per kind, in the order asked for.
void print_tables(const Invocation& asked, const std::vector<crd::Object>& objects, Session& session) {
  const bool wide = asked.output == Output::wide;
  const auto now = now_seconds();
  for (std::size_t i = 0; i < objects.size();) {
    const auto kind = objects[i].kind;
    std::vector<std::vector<std::string>> rows;
    if (asked.headers) rows.push_back(headers(kind, wide));
    if (i > 0) session.out << "\n";
    for (; i < objects.size() && objects[i].kind == kind; ++i) rows.push_back(cells(objects[i], wide, now));
    session.out << table(rows);
  }
}

void show(const Invocation& asked, crd::Store& store, Session& session) {
  const auto objects = collect(asked, store, session);
  const bool single = asked.targets.size() == 1 && !asked.targets.front().name.empty();
  if (single && objects.empty()) return;
  switch (asked.output) {
    case Output::json:
      session.out << as_one(objects, single).dump(2) << "\n";
      return;
    case Output::yaml:
      session.out << to_yaml(as_one(objects, single));
      return;
    case Output::name:
      for (const auto& object : objects) session.out << resource_name(object) << "\n";
      return;
    case Output::table:
    case Output::wide:
      break;
  }
  if (objects.empty() && session.status == k_done) session.err << "No resources found\n";
  print_tables(asked, objects, session);
}

void describe_all(const Invocation& asked, crd::Store& store, Session& session) {
  bool first = true;
  for (const auto& object : collect(asked, store, session)) {
    session.out << (first ? "" : "\n") << describe(object, now_seconds());
    first = false;
  }
}

// ---- wait, delete ------------------------------------------------------------------------------------

/// Watches one object until a wish comes true. The watch shows the present state first, so nothing is missed
/// between looking and watching.
class Waiter {
 public:
  enum class State { pending, met, absent };
  /// Judges the object (null: it does not exist).
  using Judge = std::function<State(const crd::Object*)>;

  Waiter(std::string name, Judge judge) : name_(std::move(name)), judge_(std::move(judge)) {}

  /// State::pending means that the time is up.
  Result<State> run(crd::Store& store, crd::Kind kind, Deadline deadline) {
    while (true) {
      const auto watch = store.watch(kind, "",
                                     {[this](const crd::WatchEvent& event) { see(event); },
                                      [this](const Error& error) { finish(tl::unexpected(error)); }});
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, deadline.at, [this] { return outcome_.has_value(); }))
        return State::pending;
      if (*outcome_ || (*outcome_).error().reason != Reason::version_expired) return *outcome_;
      outcome_.reset();  // too slow to follow: start over with the present state
      present_ = false;
    }
  }

 private:
  void see(const crd::WatchEvent& event) {
    using Type = crd::WatchEvent::Type;
    if (event.type == Type::bookmark) {
      if (!present_) conclude(judge_(nullptr));
      return;
    }
    if (event.object.metadata.name != name_) return;
    present_ = event.type != Type::deleted;
    conclude(judge_(present_ ? &event.object : nullptr));
  }
  void conclude(State state) {
    if (state != State::pending) finish(state);
  }
  void finish(Result<State> outcome) {
    const std::lock_guard lock(mutex_);
    if (!outcome_) outcome_ = std::move(outcome);
    changed_.notify_all();
  }

  const std::string name_;
  const Judge judge_;
  bool present_ = false;  ///< watch thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<State>> outcome_;
};

/// True when the object shows the condition for its present generation.
bool shows(const crd::Object& object, const WaitFor& wanted) {
  const auto& status = object.status.json();
  if (!status.contains("conditions") || !status["conditions"].is_array()) return false;
  for (const auto& one : status["conditions"]) {
    if (one.value("type", "") != wanted.condition) continue;
    const auto observed = one.value("observedGeneration", std::int64_t{0});
    return one.value("status", "") == wanted.status &&
           (observed == 0 || observed >= object.metadata.generation);
  }
  return false;
}

/// Waits for one object; what is missing goes to the session. True when it came.
bool wait_one(crd::Store& store, const Target& target, const WaitFor& wanted, const std::string& uid,
              Deadline deadline, Session& session) {
  const auto name = resource_name(target.kind, target.name);
  Waiter waiter(target.name, [&](const crd::Object* object) {
    if (!object) return wanted.removal ? Waiter::State::met : Waiter::State::absent;
    if (wanted.removal)  // a successor of the same name means that ours is gone
      return !uid.empty() && object->metadata.uid != uid ? Waiter::State::met : Waiter::State::pending;
    return shows(*object, wanted) ? Waiter::State::met : Waiter::State::pending;
  });
  const auto state = waiter.run(store, target.kind, deadline);
  if (!state)
    session.fail_with(state.error().message);
  else if (*state == Waiter::State::absent)
    session.fail_with(crd::subject(target.kind, target.name) + " does not exist");
  else if (*state == Waiter::State::pending)
    session.fail_with(
        "timed out waiting for " +
        (wanted.removal ? std::string("deletion") : "condition " + wanted.condition + "=" + wanted.status) +
        " of " + name + "; see pillarctl describe " + std::string(crd::info(target.kind).short_name) + " " +
        target.name);
  return state && *state == Waiter::State::met;
}

void wait_all(const Invocation& asked, crd::Store& store, Session& session) {
  const auto deadline = Deadline::after(asked.timeout);
  for (const auto& target : asked.targets)
    if (wait_one(store, target, asked.wait_for, "", deadline, session))
      session.out << resource_name(target.kind, target.name) << " condition met" << std::endl;
}

void remove_all(const Invocation& asked, const std::vector<Manifest>& manifests, crd::Store& store,
                Session& session) {
  auto targets = asked.targets;
  for (const auto& manifest : manifests)
    targets.push_back({manifest.object.kind, manifest.object.metadata.name});
  const auto deadline = Deadline::after(asked.timeout);
  std::vector<std::pair<Target, std::string>> held;
  for (const auto& target : targets) {
    const auto removed = answer_of<crd::Removed>(
        [&](auto done) { store.remove(target.kind, target.name, {}, std::move(done)); });
    if (!removed) {
      if (removed.error().reason != Reason::not_found || !asked.ignore_not_found)
        session.fail_with(removed.error().message);
      continue;
    }
    session.out << resource_name(target.kind, target.name) << " deleted" << std::endl;
    if (!removed->gone) held.emplace_back(target, removed->object.metadata.uid);
  }
  // All are marked before the first wait: one may hold another.
  if (asked.wait_for_removal)
    for (const auto& [target, uid] : held) wait_one(store, target, {true, "", ""}, uid, deadline, session);
}

void print_definitions(const Invocation& asked, Session& session) {
  std::vector<crd::Kind> kinds;
  for (const auto& target : asked.targets) kinds.push_back(target.kind);
  if (kinds.empty()) kinds.assign(std::begin(crd::k_kinds), std::end(crd::k_kinds));
  for (std::size_t i = 0; i < kinds.size(); ++i)
    session.out << (i == 0 ? "" : "---\n") << definition_yaml(kinds[i]);
}

/// The store that was asked for.
Result<std::unique_ptr<crd::Store>> open_store(const Invocation& asked) {
  if (asked.store == k_kubernetes) {
    auto config = crd::kube::find_config(asked.kubeconfig, asked.context);
    if (!config) return tl::unexpected(config.error());
    crd::kube::ClientOptions options;
    options.config = std::move(*config);
    options.user_agent = "pillarctl/" PILLAR_CSI_VERSION;
    auto client = crd::kube::Client::make(std::move(options));
    if (!client) return tl::unexpected(client.error());
    return std::make_unique<crd::kube::KubernetesStore>(std::move(*client));
  }
  auto path = crd::sqlite_path(asked.store);
  if (!path) return tl::unexpected(path.error());
  crd::SqliteOptions options;
  options.path = std::move(*path);
  options.create = asked.verb == Verb::apply;
  options.check = false;  // the controller checks; an operator's look must stay fast on a large store
  auto store = crd::SqliteStore::open(options);
  if (!store) return tl::unexpected(store.error());
  return std::move(*store);
}

void decide(const std::string& volume, const Result<std::string>& told, Session& session) {
  if (!told) return session.fail_with(told.error().message);
  session.out << resource_name(crd::Kind::volume, volume) << " " << *told << std::endl;
}

/// Commands that need the store.
void run_on_store(const Invocation& asked, Session& session) {
  // Manifests first: wrong ones change nothing, not even make a store.
  const auto manifests = manifests_of(asked, session);
  if (!manifests) return;
  const auto store = open_store(asked);
  if (!store) {
    session.fail_with(store.error().message);
    return;
  }
  switch (asked.verb) {
    case Verb::apply:
      apply(*manifests, **store, session);
      break;
    case Verb::get:
      show(asked, **store, session);
      break;
    case Verb::describe:
      describe_all(asked, **store, session);
      break;
    case Verb::remove:
      remove_all(asked, *manifests, **store, session);
      break;
    case Verb::wait:
      wait_all(asked, **store, session);
      break;
    case Verb::accept_rollback:
      decide(asked.accept_rollback.volume, accept_rollback(**store, asked.accept_rollback), session);
      break;
    case Verb::set_export_spec:
      decide(asked.set_export_spec.volume, set_export_spec(**store, asked.set_export_spec), session);
      break;
    case Verb::validate:
    case Verb::crds:
    case Verb::help:
    case Verb::version:
      break;
  }
}

}  // namespace

std::string definition_yaml(crd::Kind kind) {
  return "# Made by `pillarctl crds`, from the types of crd/types.hpp and the rules of crd/schema.cpp.\n" +
         to_yaml(crd::definition_of(kind));
}

int run(const std::vector<std::string>& arguments, const std::string& default_store, std::istream& input,
        std::ostream& out, std::ostream& err) {
  const auto asked = parse_arguments(arguments, default_store);
  if (!asked) {
    err << "error: " << asked.error().message << "\n";
    return k_usage;
  }
  Session session{input, out, err};
  switch (asked->verb) {
    case Verb::help:
      out << usage();
      break;
    case Verb::version:
      out << "pillarctl " << PILLAR_CSI_VERSION << "\n";
      break;
    case Verb::validate:
      validate(*asked, session);
      break;
    case Verb::crds:
      print_definitions(*asked, session);
      break;
    default:
      run_on_store(*asked, session);
  }
  return session.status;
}

}  // namespace pillar::pillarctl
