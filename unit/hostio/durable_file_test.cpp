#include "hostio/durable_file.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "hostio/flock.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using pillar::hostio::testing::TempDir;

namespace {

mode_t mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

/// A hook that cuts the power before step number `at` and counts the steps.
struct PowerCut {
  int at;
  int seen = 0;
  DurableHook hook() {
    return [this](std::string_view step) -> Result<void> {
      if (seen++ == at) return fail(Reason::injected_fault, "power cut before " + std::string(step));
      return {};
    };
  }
};

std::size_t entries(const std::string& path) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path)) ++n;
  return n;
}

}  // namespace

TEST_SUITE("durable files") {
  TEST_CASE("a file is written, replaced and read back") {
    const TempDir dir;
    CHECK(write_file_durable(dir / "f", "one", 0600));
    CHECK(write_file_durable(dir / "f", std::string("t\0wo", 4), 0640));
    CHECK(read_file(dir / "f").value() == std::string("t\0wo", 4));
    CHECK(mode_of(dir / "f") == 0640);
    CHECK(entries(dir.path()) == 1);
  }

  TEST_CASE("a power cut before any step leaves the whole old or the whole new content") {
    bool reached_end = false;
    for (int at = 0; !reached_end; ++at) {
      const TempDir dir;
      REQUIRE(write_file_durable(dir / "f", "old"));
      PowerCut cut{at};
      const auto result = write_file_durable(dir / "f", "new", 0600, cut.hook());
      reached_end = result.has_value();
      // Only the rename switches; what follows it is the directory sync.
      CHECK(read_file(dir / "f").value() == (at <= 3 ? "old" : "new"));
      const std::size_t leftovers = remove_leftover_temps(dir.path()).value();
      CHECK(leftovers == (at >= 1 && at <= 3 ? 1U : 0U));
      CHECK(entries(dir.path()) == 1);
      if (reached_end) CHECK(cut.seen == 5);
    }
  }

  TEST_CASE("group commit: many files, one directory sync, one result each") {
    const TempDir dir;
    dir.put("gone", "x");
    int syncs = 0;
    DurableBatch batch(dir.path(), [&](std::string_view step) -> Result<void> {
      if (step == "sync-dir") ++syncs;
      return {};
    });
    CHECK(batch.stage("a", "1"));
    CHECK(batch.stage("b", "2"));
    CHECK(batch.stage_removal("gone"));
    CHECK_FALSE(std::filesystem::exists(dir / "a"));
    std::filesystem::create_directory(dir / "c");
    CHECK(batch.stage("c", "3"));  // its rename fails: a directory is in the way
    const auto results = batch.commit();
    REQUIRE(results.size() == 4);
    CHECK(results[0]);
    CHECK(results[1]);
    CHECK(results[2]);
    CHECK_FALSE(results[3]);
    CHECK(syncs == 1);
    CHECK(read_file(dir / "b").value() == "2");
    CHECK_FALSE(std::filesystem::exists(dir / "gone"));
    CHECK(entries(dir.path()) == 3);
    CHECK(batch.commit().empty());
  }

  TEST_CASE("group commit: what is not committed vanishes; a failed directory sync fails all") {
    const TempDir dir;
    {
      DurableBatch batch(dir.path());
      CHECK(batch.stage("a", "1"));
    }
    CHECK(entries(dir.path()) == 0);
    DurableBatch batch(dir.path(), [](std::string_view step) -> Result<void> {
      if (step == "sync-dir") return fail(Reason::io_error, "disk gone");
      return {};
    });
    CHECK(batch.stage("a", "1"));
    CHECK(batch.stage("b", "2"));
    for (const auto& result : batch.commit()) CHECK_FALSE(result);
  }

  TEST_CASE("removal is idempotent") {
    const TempDir dir;
    CHECK(write_file_durable(dir / "f", "x"));
    CHECK(remove_durable(dir / "f"));
    CHECK(remove_durable(dir / "f"));
    CHECK(read_file(dir / "f").error().reason == Reason::not_found);
  }

  TEST_CASE("reading is bounded and takes regular files only") {
    const TempDir dir;
    CHECK(write_file_durable(dir / "f", std::string(5000, 'x')));
    CHECK(read_file(dir / "f", 5000));
    CHECK(read_file(dir / "f", 4999).error().reason == Reason::state_corrupt);
    REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
    CHECK(read_file(dir / "fifo").error().reason == Reason::state_corrupt);
    CHECK(read_file(dir.path()).error().reason == Reason::state_corrupt);
  }

  TEST_CASE("a missing directory is STATE_UNWRITABLE and names the path") {
    const TempDir dir;
    const auto result = write_file_durable(dir / "no/f", "x");
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::state_unwritable);
    CHECK(result.error().message.find(dir / "no") != std::string::npos);
  }

  TEST_CASE("a file in the place of the directory is STATE_UNWRITABLE with its remedy") {
    const TempDir dir;
    dir.put("file", "x");
    const auto result = write_file_durable(dir / "file/f", "x");
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::state_unwritable);
    CHECK(result.error().message.find("must exist and belong to uid") != std::string::npos);
  }

  TEST_CASE("the state directory is made with mode 0700, tightened, and must be a real directory") {
    const TempDir dir;
    CHECK(ensure_state_directory(dir / "a/b"));
    CHECK(mode_of(dir / "a/b") == 0700);
    ::chmod((dir / "a/b").c_str(), 0777);
    CHECK(ensure_state_directory(dir / "a/b"));
    CHECK(mode_of(dir / "a/b") == 0700);
    CHECK(entries(dir / "a/b") == 0);

    std::filesystem::create_directory_symlink(dir / "a", dir / "link");
    const auto link = ensure_state_directory(dir / "link");
    REQUIRE_FALSE(link);
    CHECK(link.error().reason == Reason::state_unwritable);
    dir.put("file", "x");
    CHECK(ensure_state_directory(dir / "file").error().reason == Reason::state_unwritable);
    if (::geteuid() == 0) {
      REQUIRE(::chown((dir / "a/b").c_str(), 12345, 12345) == 0);
      const auto foreign = ensure_state_directory(dir / "a/b");
      REQUIRE_FALSE(foreign);
      CHECK(foreign.error().message.find("belongs to uid 12345") != std::string::npos);
    }
  }

  TEST_CASE("crc32c: RFC 3720 B.4 vectors") {
    CHECK(crc32c("") == 0);
    CHECK(crc32c("123456789") == 0xE3069283U);
    CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
    CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43U);
  }

  TEST_CASE("directory lock: the second one is refused and told the pid") {
    const TempDir dir;
    {
      const auto first = DirectoryLock::acquire(dir.path());
      REQUIRE(first);
      const auto second = DirectoryLock::acquire(dir.path());
      REQUIRE_FALSE(second);
      CHECK(second.error().reason == Reason::state_locked);
      CHECK(second.error().details.at("pid") == std::to_string(::getpid()));
    }
    CHECK(DirectoryLock::acquire(dir.path()));
    CHECK(DirectoryLock::acquire(dir / "missing").error().reason == Reason::state_unwritable);
  }

  TEST_CASE("directory lock: a killed holder leaves no stale lock") {
    const TempDir dir;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const auto lock = DirectoryLock::acquire(dir.path());
      ::_exit(lock ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(DirectoryLock::acquire(dir.path()));
  }
}

TEST_CASE("a full file system is told from other failures") {
  CHECK(is_full(errno_error(ENOSPC, "write")));
  CHECK(is_full(errno_error(EDQUOT, "write")));
  CHECK_FALSE(is_full(errno_error(EROFS, "write")));
  CHECK_FALSE(is_full(fail(Reason::no_space, "the pool is full").value()));
}
