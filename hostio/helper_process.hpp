#pragma once
// Calls that can hang for ever in the kernel (umount, statfs, open of a dead device) run in a child that is
// our own binary again: `/proc/self/exe --helper VERB ARGS...`. The child prints one JSON document; the
// parent waits with a deadline, kills and reaps, and remembers an unkillable child as wedged (process.hpp).

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hostio/process.hpp"

namespace pillar::hostio {

/// The work of one verb, in the child. The Result travels to the parent unchanged (code, reason, message,
/// details).
using HelperFunction = std::function<Result<nlohmann::json>(const std::vector<std::string>& args)>;

/// Adds a verb. Called before run_helper_main, from one thread; a second registration of a name replaces the
/// first.
void register_helper(std::string verb, HelperFunction function);

/// First call of every main(): when argv is `PROGRAM --helper VERB ARGS...`, runs the verb, prints its result
/// and returns the exit code the program must end with; nullopt when this is an ordinary start.
std::optional<int> run_helper_main(int argc, const char* const* argv);

/// Runs helper verbs as child processes.
class HelperRunner {
 public:
  /// `executable` is our own binary; tests name another one that calls run_helper_main.
  explicit HelperRunner(CommandRunner& runner, std::string executable = "/proc/self/exe");

  /// The verb's own Result; COMMAND_TIMEOUT when it did not end by `deadline` (details["wedged"] as in
  /// process.hpp), INTERNAL when the child answered with something else than a result.
  Result<nlohmann::json> run(const std::string& verb, const std::vector<std::string>& args,
                             Deadline deadline);

 private:
  CommandRunner& runner_;
  std::string executable_;
};

}  // namespace pillar::hostio
