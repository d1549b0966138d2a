#include "store_conformance.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace pillar::crd::test {
namespace {

using namespace std::chrono_literals;

/// Runs an asynchronous call and waits for its answer.
template <class T, class F>
Result<T> wait(F call) {
  auto answer = std::make_shared<std::promise<Result<T>>>();
  auto future = answer->get_future();
  call([answer](Result<T> result) { answer->set_value(std::move(result)); });
  if (future.wait_for(20s) != std::future_status::ready) return fail(Reason::deadline_exceeded, "no answer");
  return future.get();
}

std::string event_text(const WatchEvent& event) {
  static const char* const k_names[] = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"};
  const auto& metadata = event.object.metadata;
  return std::string(k_names[static_cast<int>(event.type)]) +
         (metadata.name.empty() ? "" : " " + metadata.name) + "@" + metadata.resource_version;
}

std::string at(const char* type, const Object& object) {
  return std::string(type) + " " + object.metadata.name + "@" + object.metadata.resource_version;
}

/// Without the version, which only the deletion's own event knows.
std::string nameless_version(const std::string& event) { return event.substr(0, event.find('@')); }

Object with_mode(Object object, const char* mode) {
  auto spec = object.spec.json();
  spec["backend"]["lvm"]["thinPool"] = "tp";
  spec["backend"]["lvm"]["provisioningMode"] = mode;
  object.spec = Doc::of(spec);
  return object;
}

Object with_capacity(Object object, const char* total) {
  object.status = Doc::of({{"capacity", {{"total", total}, {"available", "0"}, {"used", "0"}}}});
  return object;
}

void objects_get_identity(Store& store) {
  auto object = agent_object("a1");
  object.metadata.uid = "mine";
  object.metadata.generation = 7;
  const auto made = create(store, object);
  REQUIRE(made);
  CHECK(made->metadata.uid.size() == 36);
  CHECK(made->metadata.uid[14] == '4');
  CHECK(made->metadata.generation == 1);
  CHECK_FALSE(made->metadata.resource_version.empty());
  CHECK(timestamp_seconds(made->metadata.creation_timestamp).has_value());
  CHECK(made->spec.json()["nodeRef"]["port"] == 9500);
  CHECK(get(store, Kind::agent, "a1").value() == *made);
  CHECK(get(store, Kind::agent, "a2").error().reason == Reason::not_found);
  CHECK(get(store, Kind::store, "a1").error().reason == Reason::not_found);
  CHECK(create(store, agent_object("a1")).error().reason == Reason::already_exists);
  const auto bad = create(store, agent_object("A_1"));
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == Code::invalid_argument);
  CHECK(bad.error().message.find("metadata.name") != std::string::npos);
}

void updates_compare(Store& store) {
  const auto first = create(store, store_object("s")).value();
  auto labelled = first;
  labelled.metadata.labels["x"] = "1";
  const auto second = update(store, labelled);
  REQUIRE(second);
  CHECK(second->metadata.generation == 1);
  CHECK(second->metadata.resource_version != first.metadata.resource_version);
  CHECK(update(store, labelled).error().reason == Reason::conflict);
  CHECK(update(store, labelled).error().code == Code::aborted);
  auto unversioned = *second;
  unversioned.metadata.resource_version.clear();
  CHECK(update(store, unversioned).error().code == Code::invalid_argument);
  auto other_life = *second;
  other_life.metadata.uid = "00000000-0000-4000-8000-000000000000";
  CHECK(update(store, other_life).error().reason == Reason::conflict);
  CHECK(update_status(store, other_life).error().reason == Reason::conflict);
  const auto same = update(store, *second);
  REQUIRE(same);
  CHECK(same->metadata.resource_version == second->metadata.resource_version);
  auto absent = *second;
  absent.metadata.name = "none";
  absent.metadata.uid.clear();
  CHECK(update(store, absent).error().reason == Reason::not_found);
  auto moved = *second;
  auto spec = moved.spec.json();
  spec["agentRef"] = "other";
  moved.spec = Doc::of(spec);
  CHECK(update(store, moved).error().code == Code::invalid_argument);
}

void spec_and_status_are_separate(Store& store) {
  auto object = create(store, with_mode(store_object("s"), "linear")).value();
  auto both = with_capacity(with_mode(object, "thin"), "1Gi");
  const auto spec_written = update(store, both).value();
  CHECK(spec_written.spec == both.spec);
  CHECK(spec_written.status.empty());
  CHECK(spec_written.metadata.generation == 2);
  auto status_only = with_capacity(with_mode(spec_written, "linear"), "1Gi");
  status_only.metadata.labels["ignored"] = "yes";
  const auto status_written = update_status(store, status_only).value();
  CHECK(status_written.spec == spec_written.spec);
  CHECK(status_written.metadata.labels.empty());
  CHECK(status_written.metadata.generation == 2);
  CHECK(status_written.status.json()["capacity"]["total"] == "1Gi");
  const auto again = update_status(store, status_written).value();
  CHECK(again.metadata.resource_version == status_written.metadata.resource_version);
  CHECK(update_status(store, spec_written).error().reason == Reason::conflict);
  auto bad = status_written;
  bad.status = Doc::of({{"nonsense", 1}});
  CHECK(update_status(store, bad).error().code == Code::invalid_argument);
  auto born_with_status = with_capacity(store_object("s2"), "2Gi");
  CHECK(create(store, born_with_status).value().status.json()["capacity"]["total"] == "2Gi");
}

void finalizers_hold(Store& store) {
  auto object = agent_object("held");
  object.metadata.finalizers = {"pillar-csi.bhyoo.com/one", "pillar-csi.bhyoo.com/two"};
  const auto made = create(store, object).value();
  CHECK(remove(store, Kind::agent, "held", {"other", ""}).error().reason == Reason::conflict);
  CHECK(remove(store, Kind::agent, "held", {"", "0"}).error().reason == Reason::conflict);
  const auto marked =
      remove(store, Kind::agent, "held", {made.metadata.uid, made.metadata.resource_version}).value();
  CHECK_FALSE(marked.gone);
  CHECK(marked.object.metadata.deleting());
  CHECK(marked.object.metadata.generation == 2);
  const auto repeated = remove(store, Kind::agent, "held").value();
  CHECK(repeated.object == marked.object);
  CHECK(create(store, object).error().reason == Reason::already_exists);
  auto more = marked.object;
  more.metadata.finalizers.push_back("pillar-csi.bhyoo.com/three");
  CHECK(update(store, more).error().code == Code::invalid_argument);
  auto less = marked.object;
  less.metadata.remove_finalizer("pillar-csi.bhyoo.com/one");
  auto last = update(store, less).value();
  CHECK(get(store, Kind::agent, "held"));
  last.metadata.finalizers.clear();
  CHECK(update(store, last));
  CHECK(get(store, Kind::agent, "held").error().reason == Reason::not_found);
  CHECK(remove(store, Kind::agent, "held").error().reason == Reason::not_found);
  const auto reborn = create(store, agent_object("held")).value();
  CHECK(reborn.metadata.uid != made.metadata.uid);
  const auto gone = remove(store, Kind::agent, "held").value();
  CHECK(gone.gone);
  CHECK(gone.object.metadata.name == "held");
  CHECK(gone.object.metadata.uid == reborn.metadata.uid);
}

void lists_page(Store& store) {
  for (const char* name : {"c", "a", "e", "b", "d"}) REQUIRE(create(store, agent_object(name)));
  REQUIRE(create(store, store_object("other-kind")));
  std::string names;
  ListOptions options;
  options.limit = 2;
  int pages = 0;
  std::string version;
  do {
    const auto page = list(store, Kind::agent, options).value();
    for (const auto& item : page.items) names += item.metadata.name;
    options.continue_token = page.continue_token;
    if (pages++ == 0) version = page.resource_version;
    CHECK(page.resource_version == version);
  } while (!options.continue_token.empty());
  CHECK(names == "abcde");
  CHECK(pages == 3);
  CHECK(list(store, Kind::agent).value().items.size() == 5);
  options.continue_token = "nonsense";
  CHECK(list(store, Kind::agent, options).error().code == Code::invalid_argument);
}

void watches_show_order_and_resume(Store& store) {
  const auto a = create(store, agent_object("a")).value();
  Recorder live;
  live.start(store, Kind::agent, "");
  const auto initial = live.wait_for(2);
  REQUIRE(initial.size() == 2);
  CHECK(initial[0] == at("ADDED", a));
  CHECK(initial[1].starts_with("BOOKMARK@"));
  REQUIRE(create(store, store_object("unrelated")));
  const auto b = create(store, agent_object("b")).value();
  auto labelled = b;
  labelled.metadata.labels["k"] = "v";
  const auto b2 = update(store, labelled).value();
  REQUIRE(remove(store, Kind::agent, "a").value().gone);
  auto seen = live.wait_for(5);
  REQUIRE(seen.size() == 5);
  CHECK(nameless_version(seen[4]) == "DELETED a");
  const std::vector<std::string> expected{at("ADDED", b), at("MODIFIED", b2), seen[4]};
  CHECK(std::vector<std::string>(seen.begin() + 2, seen.end()) == expected);
  Recorder resumed;
  resumed.start(store, Kind::agent, a.metadata.resource_version);
  CHECK(resumed.wait_for(3) == expected);
  Recorder middle;
  middle.start(store, Kind::agent, b2.metadata.resource_version);
  CHECK(middle.wait_for(1) == std::vector<std::string>{expected.back()});
  Recorder after;  // the deletion's version is where it is over
  after.start(store, Kind::agent, seen[4].substr(seen[4].find('@') + 1));
  live.stop();
  const auto c = create(store, agent_object("c")).value();
  CHECK(middle.wait_for(2).back() == at("ADDED", c));
  CHECK(after.wait_for(1) == std::vector<std::string>{at("ADDED", c)});
  CHECK(live.wait_for(0).size() == 5);
}

void lost_history_is_said(const Fixture& fixture, Store& store) {
  const auto first = create(store, agent_object("a")).value();
  std::vector<std::string> starts{"nonsense", "999999999"};
  if (!fixture.expired.empty()) starts.push_back(fixture.expired);
  if (fixture.history != 0) {
    starts.push_back(first.metadata.resource_version);
    auto object = first;
    for (std::size_t i = 0; i < fixture.history + 2; ++i) {
      object.metadata.labels["n"] = std::to_string(i);
      object = update(store, object).value();
    }
  }
  for (const std::string& from : starts) {
    Recorder recorder;
    recorder.start(store, Kind::agent, from);
    const auto end = recorder.wait_for_end();
    REQUIRE_MESSAGE(end, from);
    CHECK_MESSAGE(end->reason == Reason::version_expired, end->message);
    CHECK(end->code == Code::aborted);
  }
  Recorder recorder;
  recorder.start(store, Kind::agent, list(store, Kind::agent).value().resource_version);
  REQUIRE(remove(store, Kind::agent, "a"));
  CHECK(recorder.wait_for(1).size() == 1);
}

void races_have_one_winner(Store& store) {
  constexpr int k_threads = 8;
  constexpr int k_rounds = 25;
  REQUIRE(create(store, agent_object("raced")));
  std::atomic<int> created{0};
  std::atomic<int> conflicts{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < k_threads; ++t)
    threads.emplace_back([&, t] {
      if (create(store, agent_object("once"))) ++created;
      for (int done = 0; done < k_rounds;) {
        auto object = get(store, Kind::agent, "raced").value();
        const auto count = object.metadata.labels["count"];
        object.metadata.labels["count"] = std::to_string(count.empty() ? 1 : std::stoi(count) + 1);
        object.metadata.labels["by"] = std::to_string(t);
        const auto result = update(store, object);
        if (result)
          ++done;
        else if (result.error().reason == Reason::conflict)
          ++conflicts;
        else
          ++wrong, done = k_rounds;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(created == 1);
  CHECK(wrong == 0);
  CHECK(get(store, Kind::agent, "raced").value().metadata.labels["count"] ==
        std::to_string(k_threads * k_rounds));
}

void clients_see_each_other(const Fixture& fixture, Store& store) {
  const auto other = fixture.open();
  REQUIRE(other);
  Recorder recorder;
  recorder.start(store, Kind::agent, "");
  REQUIRE(recorder.wait_for(1).size() == 1);
  const auto made = create(*other, agent_object("theirs")).value();
  CHECK(recorder.wait_for(2).back() == at("ADDED", made));
  CHECK(get(store, Kind::agent, "theirs").value() == made);
  auto ours = made;
  ours.metadata.labels["k"] = "v";
  REQUIRE(update(store, ours));
  CHECK(update(*other, ours).error().reason == Reason::conflict);
}

void handlers_may_call_and_end(Store& store) {
  std::promise<Result<Object>> nested;
  store.create(agent_object("outer"), [&](Result<Object> outer) {
    if (outer)
      store.create(agent_object("inner"), [&](Result<Object> inner) { nested.set_value(std::move(inner)); });
  });
  CHECK(nested.get_future().get());
  std::atomic<int> calls{0};
  std::promise<void> seen;
  std::unique_ptr<Watch> watch;
  std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    watch = store.watch(Kind::agent, "",
                        {[&](const WatchEvent&) {
                           const std::lock_guard inner(mutex);
                           if (++calls == 1) seen.set_value();
                           watch.reset();
                         },
                         nullptr});
  }
  seen.get_future().get();
  REQUIRE(create(store, agent_object("later")));
  CHECK(calls == 1);
}

}  // namespace

Result<Object> get(Store& store, Kind kind, const std::string& name) {
  return wait<Object>([&](auto done) { store.get(kind, name, done); });
}
Result<Page> list(Store& store, Kind kind, ListOptions options) {
  return wait<Page>([&](auto done) { store.list(kind, options, done); });
}
Result<Object> create(Store& store, Object object) {
  return wait<Object>([&](auto done) { store.create(object, done); });
}
Result<Object> update(Store& store, Object object) {
  return wait<Object>([&](auto done) { store.update(object, done); });
}
Result<Object> update_status(Store& store, Object object) {
  return wait<Object>([&](auto done) { store.update_status(object, done); });
}
Result<Removed> remove(Store& store, Kind kind, const std::string& name, Preconditions preconditions) {
  return wait<Removed>([&](auto done) { store.remove(kind, name, preconditions, done); });
}

Object store_object(const std::string& name) {
  Object out;
  out.kind = Kind::store;
  out.metadata.name = name;
  out.spec = Doc::of({{"agentRef", "storage-1"}, {"backend", {{"lvm", {{"volumeGroup", "vg0"}}}}}});
  return out;
}

Object agent_object(const std::string& name) {
  Object out;
  out.kind = Kind::agent;
  out.metadata.name = name;
  out.spec = Doc::of({{"nodeRef", {{"name", "node-1"}}}});
  return out;
}

void Recorder::start(Store& store, Kind kind, const std::string& from) {
  watch_ = store.watch(kind, from,
                       {[this](const WatchEvent& event) {
                          const std::lock_guard lock(mutex_);
                          events_.push_back(event_text(event));
                          changed_.notify_all();
                        },
                        [this](const Error& error) {
                          const std::lock_guard lock(mutex_);
                          end_ = error;
                          changed_.notify_all();
                        }});
}

std::vector<std::string> Recorder::wait_for(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 10s, [&] { return events_.size() >= count; });
  return events_;
}

std::optional<Error> Recorder::wait_for_end() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 10s, [&] { return end_.has_value(); });
  return end_;
}

void run_conformance(const std::function<Fixture()>& make) {
  const auto fixture = make();
  const auto store = fixture.open();
  REQUIRE(store);
  SUBCASE("objects get uid, version, time, generation and defaults") { objects_get_identity(*store); }
  SUBCASE("updates compare resource version and uid; equal content writes nothing") {
    updates_compare(*store);
  }
  SUBCASE("spec and status are written separately; generation rises with spec only") {
    spec_and_status_are_separate(*store);
  }
  SUBCASE("finalizers hold an object until the last one goes") { finalizers_hold(*store); }
  SUBCASE("lists are complete, ordered and paged") { lists_page(*store); }
  SUBCASE("watches show every change once, in order, and resume") { watches_show_order_and_resume(*store); }
  SUBCASE("a start before the kept history ends with VERSION_EXPIRED") {
    lost_history_is_said(fixture, *store);
  }
  SUBCASE("of racing writers one wins, none is lost") { races_have_one_winner(*store); }
  SUBCASE("another client's writes are seen and compared") { clients_see_each_other(fixture, *store); }
  SUBCASE("callbacks may call the store and end their own watch") { handlers_may_call_and_end(*store); }
}

}  // namespace pillar::crd::test
