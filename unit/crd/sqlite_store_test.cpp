#include "crd/sqlite_store.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include <doctest/doctest.h>
#include <sqlite3.h>

#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::test;
using namespace std::chrono_literals;

namespace {

/// A directory that goes away with the test.
struct Scratch {
  Scratch() {
    char name[] = "/tmp/pillar-store-XXXXXX";
    path = mkdtemp(name);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  SqliteOptions options(const std::string& name = "store.db") const {
    SqliteOptions out;
    out.path = path + "/" + name;
    out.busy_timeout = 300ms;
    return out;
  }
  std::string path;
};

std::unique_ptr<SqliteStore> open(const SqliteOptions& options) {
  auto store = SqliteStore::open(options);
  REQUIRE_MESSAGE(store, (store ? "" : store.error().message));
  return std::move(*store);
}

/// Runs `child` in another process, which ends without any clean-up of ours.
template <class F>
pid_t spawn(F child) {
  const auto pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  return pid;
}

void sql(const std::string& path, const char* text) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, text, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

Reason refusal(const SqliteOptions& options) {
  const auto store = SqliteStore::open(options);
  REQUIRE_FALSE(store);
  CHECK(store.error().message.find(options.path) != std::string::npos);
  MESSAGE(store.error().message);
  return store.error().reason;
}

}  // namespace

TEST_SUITE_BEGIN("sqlite store");

TEST_CASE("the SQLite store meets the store conformance suite") {
  const Scratch scratch;
  run_conformance([&] {
    auto options = scratch.options();
    options.history = 50;
    return Fixture{[options] { return open(options); }, options.history, ""};
  });
}

TEST_CASE("store URLs") {
  CHECK(sqlite_path("sqlite:///var/lib/x.db").value() == "/var/lib/x.db");
  CHECK(sqlite_path("sqlite:x.db").value() == "x.db");
  for (const char* bad : {"", "/var/lib/x.db", "sqlite:", "sqlite://host/x", "etcd://x"})
    CHECK_FALSE(sqlite_path(bad));
}

TEST_CASE("64 creates in flight share few commits, each with its own verdict") {
  const Scratch scratch;
  const auto store = open(scratch.options());
  std::vector<std::future<Result<Object>>> answers;
  for (int i = 0; i < 64; ++i) {
    auto answer = std::make_shared<std::promise<Result<Object>>>();
    answers.push_back(answer->get_future());
    store->create(agent_object("a" + std::to_string(i / 2)),
                  [answer](Result<Object> result) { answer->set_value(std::move(result)); });
  }
  int made = 0;
  int refused = 0;
  for (auto& answer : answers) {
    const auto result = answer.get();
    result ? ++made : ++refused;
    if (!result) CHECK(result.error().reason == Reason::already_exists);
  }
  CHECK(made == 32);
  CHECK(refused == 32);
  CHECK(store->stats().writes == 64);
  CHECK(store->stats().transactions <= 32);
}

TEST_CASE("a store reopened after kill -9 in the middle of writes has every answered write") {
  const Scratch scratch;
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  const auto child = spawn([&] {
    auto store = SqliteStore::open(scratch.options());
    if (!store) return;
    for (int i = 0;; ++i)
      (*store)->create(agent_object("a" + std::to_string(i)), [&, i](Result<Object> result) {
        if (result && write(pipe_fds[1], &i, sizeof i) != sizeof i) _exit(1);
      });
  });
  close(pipe_fds[1]);
  int last = -1;
  for (int n = 0; n < 200; ++n) REQUIRE(read(pipe_fds[0], &last, sizeof last) == sizeof last);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  for (int more = 0; read(pipe_fds[0], &more, sizeof more) == sizeof more;) last = more;
  close(pipe_fds[0]);

  const auto store = open(scratch.options());
  const auto page = list(*store, Kind::agent).value();
  CHECK(page.items.size() > static_cast<std::size_t>(last));
  CHECK(get(*store, Kind::agent, "a" + std::to_string(last)));
  CHECK(create(*store, agent_object("after")));
}

TEST_CASE("two processes: the other one's writes arrive at once and are compared") {
  const Scratch scratch;
  open(scratch.options());
  int go[2];
  REQUIRE(pipe(go) == 0);
  const auto child = spawn([&] {
    char byte = 0;
    auto store = SqliteStore::open(scratch.options());
    if (!store || read(go[0], &byte, 1) != 1) _exit(2);
    for (int i = 0; i < 20; ++i) {
      if (!create(**store, agent_object("theirs-" + std::to_string(i)))) _exit(3);
      usleep(10000);
    }
  });
  const auto store = open(scratch.options());
  Recorder recorder;
  recorder.start(*store, Kind::agent, "");
  REQUIRE(recorder.wait_for(1).size() == 1);
  REQUIRE(write(go[1], "x", 1) == 1);
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(recorder.wait_for(2).size() >= 2);
  const auto first = std::chrono::steady_clock::now() - begin;
  CHECK(first < 900ms);  // inotify, not the fallback interval
  MESSAGE("first event after ", std::chrono::duration_cast<std::chrono::microseconds>(first).count(), " us");
  const auto all = recorder.wait_for(21);
  CHECK(all.size() == 21);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(create(*store, agent_object("theirs-3")).error().reason == Reason::already_exists);
}

TEST_CASE("an idle store makes no writes and almost no wake-ups") {
  const Scratch scratch;
  const auto store = open(scratch.options());
  Recorder recorder;
  recorder.start(*store, Kind::agent, "");
  recorder.wait_for(1);
  timespec before{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(1500000);
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const auto used = static_cast<double>(after.tv_sec - before.tv_sec) +
                    static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  CHECK(used < 0.015);  // 1 %
}

TEST_CASE("files that cannot serve are refused with the reason") {
  const Scratch scratch;
  auto missing = scratch.options("absent.db");
  missing.create = false;
  CHECK(refusal(missing) == Reason::not_found);
  CHECK_FALSE(std::filesystem::exists(missing.path));
  CHECK(refusal(scratch.options("no/such/dir.db")) == Reason::state_unwritable);
  CHECK(refusal(scratch.options("")) == Reason::state_unwritable);

  const auto text = scratch.options("text.db");
  std::ofstream(text.path) << std::string(8192, 'x');
  CHECK(refusal(text) == Reason::state_corrupt);

  const auto foreign = scratch.options("foreign.db");
  sql(foreign.path, "CREATE TABLE t (x); INSERT INTO t VALUES (1);");
  CHECK(refusal(foreign) == Reason::state_corrupt);

  const auto newer = scratch.options("newer.db");
  open(newer);
  sql(newer.path, "PRAGMA user_version = 99");
  CHECK(refusal(newer) == Reason::state_corrupt);

  const auto torn = scratch.options("torn.db");
  {
    const auto store = open(torn);
    for (int i = 0; i < 200; ++i) REQUIRE(create(*store, agent_object("a" + std::to_string(i))));
  }
  {
    std::fstream file(torn.path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * 4096);
    file << std::string(5 * 4096, '\xff');
  }
  CHECK(refusal(torn) == Reason::state_corrupt);
}

TEST_CASE("a store locked by another program is refused at open and UNAVAILABLE later") {
  const Scratch scratch;
  const auto options = scratch.options();
  const auto store = open(options);
  sqlite3* other = nullptr;
  REQUIRE(sqlite3_open(options.path.c_str(), &other) == SQLITE_OK);
  REQUIRE(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK);
  const auto late = create(*store, agent_object("a"));
  REQUIRE_FALSE(late);
  CHECK(late.error().reason == Reason::store_unavailable);
  CHECK(late.error().code == Code::unavailable);
  CHECK(refusal(options) == Reason::state_locked);
  CHECK(list(*store, Kind::agent));  // reads go on
  sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  CHECK(create(*store, agent_object("a")));
}

TEST_CASE("the file is private") {
  const Scratch scratch;
  const auto options = scratch.options();
  open(options);
  struct stat info {};
  REQUIRE(stat(options.path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_SUITE_END();
