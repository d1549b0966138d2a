#pragma once
// What every implementation of pillar::crd::Store must do. An implementation's test calls run_conformance()
// inside a test case of its own; each requirement is a subcase.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "crd/store.hpp"

namespace pillar::crd::test {

/// A store under test, and a way to get another view of the same data (another client or connection).
struct Fixture {
  std::function<std::unique_ptr<Store>()> open;
  /// Writes that are more than this many versions back cannot be watched from; 0: history ends otherwise.
  std::size_t history = 0;
  /// A version that lies before the kept history from the start; empty: none is known.
  std::string expired;
};

/// Runs all requirements; `make` gives a fresh, empty fixture for each.
void run_conformance(const std::function<Fixture()>& make);

// Blocking forms, for tests.
Result<Object> get(Store& store, Kind kind, const std::string& name);
Result<Page> list(Store& store, Kind kind, ListOptions options = {});
Result<Object> create(Store& store, Object object);
Result<Object> update(Store& store, Object object);
Result<Object> update_status(Store& store, Object object);
Result<Removed> remove(Store& store, Kind kind, const std::string& name, Preconditions preconditions = {});

/// A valid PillarStore and PillarAgent.
Object store_object(const std::string& name);
Object agent_object(const std::string& name);

/// Collects the events of a watch.
class Recorder {
 public:
  /// Starts watching.
  void start(Store& store, Kind kind, const std::string& from);
  /// Waits until `count` events came (10 s at most) and returns all so far as "ADDED name@version" texts.
  std::vector<std::string> wait_for(std::size_t count);
  /// Waits for the end of the watch (10 s at most).
  std::optional<Error> wait_for_end();
  void stop() { watch_.reset(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::optional<Error> end_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace pillar::crd::test
