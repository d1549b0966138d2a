// pillar-durable-floor: replaces durable files as fast as the disk and the kernel allow, with nothing else to
// do, and prints the rate as JSON: the bound that durable writes alone set to the programs.
//   pillar-durable-floor --dir DIR --threads 8 --seconds 5

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "hostio/durable_file.hpp"

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t k_record_bytes = 700;  // of a stage record
constexpr unsigned k_files_per_thread = 16;

struct Options {
  std::string directory;
  unsigned threads = 8;
  double seconds = 5;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Creates, replaces and removes files of its own until `end`, as a volume's stage record lives.
void write_records(const Options& options, unsigned thread, SteadyClock::time_point end,
                   std::atomic<std::uint64_t>& changes, std::atomic<bool>& failed) {
  constexpr unsigned k_writes_per_life = 9;
  const std::string text(k_record_bytes, 'x');
  for (unsigned life = 0; SteadyClock::now() < end; ++life) {
    const std::string path = options.directory + "/record-" + std::to_string(thread) + "-" +
                             std::to_string(life % k_files_per_thread);
    bool good = true;
    for (unsigned i = 0; i < k_writes_per_life && good; ++i) {
      good = pillar::hostio::write_file_durable(path, text).has_value();
      ++changes;
    }
    good = good && pillar::hostio::remove_durable(path).has_value();
    ++changes;
    if (!good) failed = true;
    if (!good) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App cli("Rate of durable file changes with nothing else to do", "pillar-durable-floor");
  cli.add_option("--dir", options.directory, "where to write")->required();
  cli.add_option("--threads", options.threads, "writers at once")->check(CLI::Range(1, 256));
  cli.add_option("--seconds", options.seconds, "how long")->check(CLI::Range(0.1, 600.0));
  CLI11_PARSE(cli, argc, argv);
  std::filesystem::create_directories(options.directory);
  std::atomic<std::uint64_t> changes{0};
  std::atomic<bool> failed{false};
  const auto begin = SteadyClock::now();
  const auto end = begin + std::chrono::duration_cast<SteadyClock::duration>(
                               std::chrono::duration<double>(options.seconds));
  {
    std::vector<std::jthread> writers;
    for (unsigned i = 0; i < options.threads; ++i)
      writers.emplace_back([&, i] { write_records(options, i, end, changes, failed); });
  }
  const double wall = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  if (failed) {
    std::fprintf(stderr, "pillar-durable-floor: cannot write in %s\n", options.directory.c_str());
    return 1;
  }
  const nlohmann::json report{{"changes", changes.load()}, {"seconds", wall}, {"cpu_seconds", cpu_seconds()}};
  std::printf("%s\n", report.dump().c_str());
  return 0;
}
