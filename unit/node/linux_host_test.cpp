#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "actors/node/linux_host.hpp"
#include "actors/runtime/testing.hpp"
#include "messages/ids.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("node/linux_host");

namespace {

/// A host over a state directory of its own, driven from the test's thread.
struct Real {
  std::string directory = std::filesystem::temp_directory_path() / ("pillar-node-" + uuid_v4());
  std::shared_ptr<Machine> machine;
  std::shared_ptr<runtime::QueueExecutor> executor = std::make_shared<runtime::QueueExecutor>();
  std::shared_ptr<Host> host;

  Real() {
    std::filesystem::create_directories(directory);
    MachineOptions options;
    options.state_dir = directory;
    machine = std::make_shared<Machine>(std::move(options));
    host = make_linux_host(machine, executor, [](const ConnectCall&) {});
  }
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;
  ~Real() {
    machine.reset();
    std::filesystem::remove_all(directory);
  }
  Result<void> write(const std::string& text) {
    return executor->run(host->write_record("v.json", text), 10s);
  }
};

}  // namespace

TEST_CASE("a record is not written while an earlier write of it hangs and may yet replace it") {
  Real real;
  std::promise<void> release;
  std::atomic<bool> answered = false;
  // What a write that waits for a stuck disk looks like to the pool.
  real.machine->quick().submit<Done>(
      Deadline::after(500ms),
      [released = release.get_future().share()]() -> Result<Done> {
        released.wait();
        return Done{};
      },
      {"write stage record", "record v.json"}, [&](const Result<Done>&) { answered = true; });
  while (!answered) std::this_thread::sleep_for(1ms);
  const auto refused = real.write("new");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::operation_pending);
  CHECK(std::filesystem::is_empty(real.directory));
  release.set_value();
  while (real.machine->quick().stats().stuck > 0) std::this_thread::sleep_for(1ms);
  CHECK(real.write("new"));
}
