#pragma once
// Running external programs: argv only (never a shell), fixed environment, own process group, deadline,
// bounded output. Blocking; call it from the blocking pool. Safe with any number of threads (posix_spawn).

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

/// One program run.
struct Command {
  std::string program;            ///< bare name, looked up in the fixed search path, or an absolute path
  std::vector<std::string> args;  ///< without argv[0]
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  std::string input = {};                  ///< written to stdin, then closed
  std::size_t output_limit = 1024 * 1024;  ///< bytes, for stdout and stderr each
  std::vector<std::string> env = {};       ///< "KEY=VALUE" added to the fixed environment

  /// The command line as an operator would type it, for messages.
  std::string text() const;
};

/// What a finished program left behind.
struct CommandResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Something that runs commands: the real ProcessRunner, or a script in a test.
class CommandRunner {
 public:
  CommandRunner() = default;
  CommandRunner(const CommandRunner&) = delete;
  CommandRunner& operator=(const CommandRunner&) = delete;
  virtual ~CommandRunner() = default;

  /// Runs `command` to its end. A value for every exit code; errors: TOOL_MISSING (naming the Debian
  /// package), COMMAND_TIMEOUT (killed and reaped; details["wedged"] = "true": it, or 3 like it, hang on),
  /// OUTPUT_TOO_LARGE (killed), COMMAND_FAILED (died of a signal), IO_ERROR (could not be started).
  virtual Result<CommandResult> run(const Command& command) = 0;
};

/// Runs `command` and turns every exit code but 0 into COMMAND_FAILED with the first lines of stderr and
/// details["exit_code"].
Result<CommandResult> run_checked(CommandRunner& runner, const Command& command);

/// A child that survived SIGKILL (a task in uninterruptible sleep).
struct WedgedProcess {
  pid_t pid = 0;
  std::string program;
  Clock::time_point since;
};

/// Called after each run: basename of the program, result (ok, failed, timeout, wedged, missing, too_large,
/// error; a fixed set, fit for a metric label) and duration.
using ExecObserver =
    std::function<void(std::string_view executable, std::string_view result, Clock::duration duration)>;

/// The real runner.
class ProcessRunner : public CommandRunner {
 public:
  struct Options {
    std::vector<std::string> search_path = {"/usr/sbin", "/usr/bin", "/sbin", "/bin"};
    std::chrono::milliseconds term_grace{2000};  ///< between SIGTERM and SIGKILL
    std::chrono::milliseconds kill_grace{1000};  ///< after SIGKILL, before the child counts as wedged
    ExecObserver observer;
  };

  ProcessRunner();
  explicit ProcessRunner(Options options);
  Result<CommandResult> run(const Command& command) override;

 private:
  Result<CommandResult> run_unobserved(const Command& command) const;

  Options options_;
};

/// Absolute path of `program` in `search_path`; TOOL_MISSING naming program and Debian package.
Result<std::string> find_program(std::string_view program, const std::vector<std::string>& search_path);

/// The Debian package that ships `program` ("lvcreate" -> "lvm2"); the program's own name when unknown.
std::string debian_package_of(std::string_view program);

/// Children that could not be killed, of all runners of this process. Reaps those that have ended since; each
/// run does so too, so no zombie outlives the next command.
std::vector<WedgedProcess> wedged_processes();

}  // namespace pillar::hostio
