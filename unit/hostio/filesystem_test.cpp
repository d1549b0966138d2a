#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "fake_nvme.hpp"
#include "hostio/filesystem.hpp"
#include "hostio/sysfs.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using nlohmann::json;
using pillar::hostio::testing::FakeNvme;
using pillar::hostio::testing::TempDir;

namespace {

constexpr std::uint64_t k_mib = 1ULL << 20U;

/// Answers every command with `result` and keeps it.
class Script : public CommandRunner {
 public:
  explicit Script(CommandResult result = {}) : result_(std::move(result)) {}
  Result<CommandResult> run(const Command& command) override {
    seen = command.text();
    return result_;
  }
  std::string seen;

 private:
  CommandResult result_;
};

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string image(const TempDir& dir, std::uint64_t bytes) {
  const auto path = dir / "image";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, bytes);
  return path;
}

std::string output_of(std::string program, std::vector<std::string> args) {
  ProcessRunner runner;
  Command command;
  command.program = std::move(program);
  command.args = std::move(args);
  const auto result = runner.run(command);
  REQUIRE(result);
  return result->out + result->err;
}

}  // namespace

TEST_CASE("G08, G13: mkfs neither forces nor discards and pins its features") {
  CHECK(join(mkfs_argv("ext4", {}, "/dev/x").value()) ==
        "mkfs.ext4 -q -O none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,"
        "sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum -E "
        "nodiscard,lazy_itable_init=1,lazy_journal_init=1 -m 0 /dev/x");
  CHECK(join(mkfs_argv("xfs", {}, "/dev/x").value()) ==
        "mkfs.xfs -q -K -i nrext64=0,sparse=1 -m bigtime=0,crc=1,finobt=1,inobtcount=0,reflink=1,rmapbt=0 "
        "/dev/x");
}

TEST_CASE("mkfs options of the user replace the presets") {
  CHECK(
      join(mkfs_argv("ext4", {"-m 5", "-b", "4096", "-E stride=16,lazy_itable_init=0", "-O ^64bit"}, "/dev/x")
               .value()) ==
      "mkfs.ext4 -q -O none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,"
      "sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum,^64bit -E "
      "nodiscard,lazy_itable_init=0,lazy_journal_init=1,stride=16 -b 4096 -m 5 /dev/x");
  CHECK(join(mkfs_argv("xfs", {"-m reflink=0", "-d su=64k,sw=4", "-L data"}, "/dev/x").value()) ==
        "mkfs.xfs -q -K -L data -d su=64k,sw=4 -i nrext64=0,sparse=1 -m "
        "bigtime=0,crc=1,finobt=1,inobtcount=0,reflink=0,rmapbt=0 /dev/x");
  CHECK(check_mkfs_options("ext4", {"-m 5", "-b4096"}));
  // What the driver always passes is passed once.
  CHECK(mkfs_argv("ext4", {"-E", "nodiscard"}, "/dev/x").value() == mkfs_argv("ext4", {}, "/dev/x").value());
  CHECK(mkfs_argv("xfs", {"-K"}, "/dev/x").value() == mkfs_argv("xfs", {}, "/dev/x").value());
}

TEST_CASE("mkfs options outside the allowlist are refused by name") {
  struct Row {
    const char* fs;
    std::vector<std::string> options;
    const char* names;
  };
  const Row rows[] = {
      {"ext4", {"-F"}, "-F"},
      {"xfs", {"-f"}, "-f"},
      {"ext4", {"-E discard"}, "-E discard"},
      {"ext4", {"-O orphan_file"}, "-O orphan_file"},
      {"ext4", {"-b 3000"}, "-b 3000"},
      {"ext4", {"-b"}, "lacks its value"},
      {"ext4", {"-m 51"}, "-m 51"},
      {"ext4", {"-m", "1", "-m", "2"}, "twice"},
      {"ext4", {"-L -rf"}, "-L"},
      {"ext4", {"/dev/sda"}, "/dev/sda"},
      {"ext4", {"-b 4096 /dev/sda"}, "/dev/sda"},
      {"ext4", {"-E offset=1"}, "offset"},
      {"ext4", {"-d /etc"}, "-d"},
      {"xfs", {"-d file=1"}, "file"},
      {"xfs", {"-d name=/dev/sda"}, "name"},
      {"xfs", {"-l logdev=/dev/sda"}, "logdev"},
      {"xfs", {"-m bigtime=1"}, "bigtime"},
      {"xfs", {"-r rtdev=/dev/sda"}, "-r"},
      {"xfs", {"-d su=64k"}, "needs sw"},
      {"ext4", {"-O bigalloc"}, "-O bigalloc"},
      {"ext4", {"-O 64bit,^64bit"}, "twice"},
      {"xfs", {"-p /etc/passwd"}, "-p"},
      {"ext5", {}, "ext5"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.names);
    const auto argv = mkfs_argv(row.fs, row.options, "/dev/x");
    REQUIRE(!argv);
    CHECK(argv.error().code == Code::invalid_argument);
    CHECK(argv.error().message.find(row.names) != std::string::npos);
    CHECK(!check_mkfs_options(row.fs, row.options));
  }
  CHECK(!mkfs_argv("ext4", {}, "-F"));
}

TEST_CASE("a volume too small for its filesystem is named before anything is made") {
  CHECK(check_fs_size("xfs", 300 * k_mib));
  const auto small = check_fs_size("xfs", 300 * k_mib - 1);
  REQUIRE(!small);
  CHECK(small.error().code == Code::out_of_range);
  CHECK(small.error().message.find("300 MiB") != std::string::npos);
  CHECK(check_fs_size("ext4", 8 * k_mib));
  CHECK(!check_fs_size("ext4", 4 * k_mib));
  CHECK(!check_fs_size("btrfs", 1024 * k_mib));
}

TEST_CASE("G13: what the real mkfs.ext4 makes has no feature a 5.4 kernel lacks") {
  const TempDir dir;
  const auto path = image(dir, 64 * k_mib);
  ProcessRunner runner;
  REQUIRE(make_filesystem(runner, "ext4", {"-b 4096", "-L data"}, path, Deadline::after(60s)));
  const auto text = output_of("dumpe2fs", {"-h", path});
  CHECK(text.find("metadata_csum") != std::string::npos);
  CHECK(text.find("64bit") != std::string::npos);
  for (const char* feature :
       {"metadata_csum_seed", "orphan_file", "fast_commit", "casefold", "stable_inodes"})
    CHECK(text.find(feature) == std::string::npos);
  CHECK(text.find("Reserved block count:     0\n") != std::string::npos);
}

TEST_CASE("G13: what the real mkfs.xfs makes has no feature a 5.4 kernel lacks") {
  const TempDir dir;
  const auto path = image(dir, 300 * k_mib);
  ProcessRunner runner;
  REQUIRE(make_filesystem(runner, "xfs", {}, path, Deadline::after(60s)));
  const auto text = output_of("xfs_db", {"-r", "-c", "version", path});
  CHECK(text.find("REFLINK") != std::string::npos);
  for (const char* feature : {"BIGTIME", "INOBTCNT", "NREXT64"})
    CHECK(text.find(feature) == std::string::npos);
  // Without a force flag the tool itself is a second guard.
  const auto again = make_filesystem(runner, "xfs", {}, path, Deadline::after(60s));
  REQUIRE(!again);
  CHECK(again.error().reason == Reason::command_failed);
}

TEST_CASE("G11: e2fsck exit codes") {
  CHECK(fsck_outcome(0, "/dev/x", "").value() == FsckOutcome::clean);
  for (const int code : {1, 2, 3}) CHECK(fsck_outcome(code, "/dev/x", "").value() == FsckOutcome::repaired);
  for (const int code : {4, 5, 12}) {
    const auto outcome = fsck_outcome(code, "/dev/x", "UNEXPECTED INCONSISTENCY");
    REQUIRE(!outcome);
    CHECK(outcome.error().reason == Reason::filesystem_corrupt);
    CHECK(outcome.error().code == Code::internal);
    CHECK(outcome.error().details.at("exit_code") == std::to_string(code));
    CHECK(outcome.error().message.find("INCONSISTENCY") != std::string::npos);
  }
  for (const int code : {8, 16, 32, 128})
    CHECK(fsck_outcome(code, "/dev/x", "").error().reason == Reason::command_failed);
}

TEST_CASE("G10, G11: a marked ext4 is repaired, a broken one refused and left alone") {
  const TempDir dir;
  const auto path = image(dir, 64 * k_mib);
  ProcessRunner runner;
  REQUIRE(make_filesystem(runner, "ext4", {}, path, Deadline::after(60s)));
  CHECK(check_filesystem(runner, "ext4", path, Deadline::after(60s)).value() == FsckOutcome::clean);
  output_of("debugfs", {"-w", "-R", "set_super_value state 2", path});
  CHECK(check_filesystem(runner, "ext4", path, Deadline::after(60s)).value() == FsckOutcome::repaired);
  CHECK(check_filesystem(runner, "ext4", path, Deadline::after(60s)).value() == FsckOutcome::clean);
  output_of("debugfs", {"-w", "-R", "clri <2>", path});
  output_of("debugfs", {"-w", "-R", "set_super_value state 2", path});
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto outcome = check_filesystem(runner, "ext4", path, Deadline::after(60s));
    REQUIRE(!outcome);
    CHECK(outcome.error().reason == Reason::filesystem_corrupt);
  }
}

TEST_CASE("xfs is not checked before a mount") {
  Script script({8, "", ""});
  CHECK(check_filesystem(script, "xfs", "/dev/x", Deadline::after(1s)));
  CHECK(script.seen.empty());
}

TEST_CASE("growing uses the node for ext4 and the mount point for xfs") {
  Script script;
  REQUIRE(grow_filesystem(script, "ext4", "/dev/x", "/mnt", Deadline::after(1s)));
  CHECK(script.seen.find("resize2fs /dev/x") != std::string::npos);
  REQUIRE(grow_filesystem(script, "xfs", "/dev/x", "/mnt", Deadline::after(1s)));
  CHECK(script.seen.find("xfs_growfs -d /mnt") != std::string::npos);
  CHECK(!grow_filesystem(script, "zfs", "/dev/x", "/mnt", Deadline::after(1s)));
  Script failing({1, "", "no space"});
  CHECK(grow_filesystem(failing, "ext4", "/dev/x", "/mnt", Deadline::after(1s)).error().reason ==
        Reason::command_failed);
}

TEST_CASE("statistics, flush and checks work on a live directory and leave nothing behind") {
  const TempDir dir;
  const auto stats = filesystem_stats(run_host_verb_here, dir.path(), Deadline::after(1s));
  REQUIRE(stats);
  CHECK(stats->total_bytes > 0);
  CHECK(stats->used_bytes <= stats->total_bytes);
  CHECK(stats->available_bytes <= stats->total_bytes);
  CHECK(sync_filesystem(run_host_verb_here, dir.path(), Deadline::after(60s)));
  CHECK(run_host_verb_here("write-check", {{"path", dir.path()}}, Deadline::never())->at("errno") == 0);
  CHECK(run_host_verb_here("list-check", {{"path", dir.path()}}, Deadline::never())->at("errno") == 0);
  CHECK(list_directory(dir.path()).empty());
  CHECK(run_host_verb_here("write-check", {{"path", dir / "none"}}, Deadline::never())->at("errno") ==
        ENOENT);
  CHECK(run_host_verb_here("list-check", {{"path", dir / "none"}}, Deadline::never())->at("errno") == ENOENT);
}

TEST_CASE("I01, I06: statistics of a missing path are NOT_FOUND") {
  CHECK(filesystem_stats(run_host_verb_here, "/nonexistent/path", Deadline::after(1s)).error().reason ==
        Reason::not_found);
}

TEST_CASE("D03, D12: the verdict about a mounted filesystem") {
  struct Row {
    const char* what;
    FilesystemEvidence evidence;
    FilesystemHealth health;
  };
  using enum FilesystemHealth;
  const auto with = [](auto change) {
    FilesystemEvidence evidence;
    evidence.write_check = 0;
    change(evidence);
    return evidence;
  };
  const Row rows[] = {
      {"all well", with([](auto&) {}), alive},
      {"device gone", with([](auto& e) { e.device_exists = false; }), dead},
      {"device gone and unreachable", with([](auto& e) { e.device_exists = e.device_live = false; }), dead},
      {"xfs shut down", with([](auto& e) { e.shutdown_option = true; }), dead},
      {"turned read-only", with([](auto& e) { e.superblock_read_only = true; }), dead},
      {"read-only as wanted", with([](auto& e) { e.superblock_read_only = e.expected_read_only = true; }),
       alive},
      {"connecting", with([](auto& e) { e.device_live = false; }), stalled},
      {"no answer", with([](auto& e) { e.write_check = -2; }), stalled},
      {"aborted journal", with([](auto& e) { e.write_check = EROFS; }), dead},
      {"i/o error", with([](auto& e) { e.write_check = EIO; }), dead},
      {"errors recorded", with([](auto& e) { e.recorded_errors = 3; }), degraded},
      {"not asked yet", with([](auto& e) { e.write_check = -1; }), alive},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    const auto verdict = judge_filesystem(row.evidence);
    CHECK(verdict.health == row.health);
    CHECK(verdict.why.empty() == (row.health == alive));
  }
}

TEST_CASE("D12: the filesystem is asked only when nothing else says that it is dead") {
  const FakeNvme fake;
  fake.block("class/nvme-subsystem/nvme-subsys0", "nvme0n1", "259:1", "1", "u");
  MountEntry entry;
  entry.target = "/stage";
  entry.fs_type = "ext4";
  entry.device = {259, 1};
  entry.vfs_options = entry.fs_options = "rw";
  std::string asked;
  Result<json> answer = json{{"errno", 0}};
  const HelperCall helper = [&](std::string_view verb, const json& input, Deadline) {
    asked = std::string(verb) + " " + input.at("path").get<std::string>();
    return answer;
  };
  const auto health = [&](bool expected_read_only, bool live) {
    asked.clear();
    const auto verdict =
        check_filesystem_health(helper, fake.roots(), entry, expected_read_only, live, Deadline::after(1s));
    REQUIRE(verdict);
    return verdict->health;
  };
  CHECK(health(false, true) == FilesystemHealth::alive);
  CHECK(asked == "write-check /stage");
  CHECK(health(false, false) == FilesystemHealth::stalled);
  CHECK(asked.empty());
  answer = json{{"errno", EROFS}};
  CHECK(health(false, true) == FilesystemHealth::dead);
  answer = fail(Reason::command_timeout, "x");
  CHECK(health(false, true) == FilesystemHealth::stalled);
  answer = json{{"errno", 0}};
  fake.dir().put("sys/fs/ext4/nvme0n1/errors_count", "2\n");
  CHECK(health(false, true) == FilesystemHealth::degraded);
  entry.vfs_options = entry.fs_options = "ro";
  CHECK(health(false, true) == FilesystemHealth::dead);
  CHECK(asked.empty());
  health(true, true);
  CHECK(asked == "list-check /stage");
  entry.device = {259, 99};
  CHECK(health(true, true) == FilesystemHealth::dead);
  CHECK(asked.empty());
}

TEST_CASE("device verbs refuse what is not the expected device") {
  const TempDir dir;
  const auto path = image(dir, k_mib);
  CHECK(check_device_opens(run_host_verb_here, path, {259, 1}, Deadline::after(1s)).error().reason ==
        Reason::device_mismatch);
  CHECK(check_device_opens(run_host_verb_here, dir / "none", {259, 1}, Deadline::after(1s)).error().reason ==
        Reason::device_missing);
  CHECK(set_device_read_only(run_host_verb_here, path, {259, 1}, true, Deadline::after(1s)).error().reason ==
        Reason::device_mismatch);
}
