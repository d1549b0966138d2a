#include "hostio/process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>

#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;

namespace {

Command sh(const std::string& script, Clock::duration span = 10s) {
  return Command{"sh", {"-c", script}, Deadline::after(span)};
}

ProcessRunner quick_runner() {
  ProcessRunner::Options options;
  options.term_grace = 50ms;
  return ProcessRunner(options);
}

bool process_exists(const std::string& pid) { return ::kill(std::stoi(pid), 0) == 0; }

bool gone_within(const std::string& pid, Clock::duration span) {
  for (const Deadline until = Deadline::after(span); !until.passed(); std::this_thread::sleep_for(5ms))
    if (!process_exists(pid)) return true;
  return !process_exists(pid);
}

}  // namespace

TEST_SUITE("process") {
  TEST_CASE("exit code, stdout and stderr come back apart") {
    ProcessRunner runner;
    const auto result = runner.run(sh("echo out; echo err >&2; exit 5"));
    REQUIRE(result);
    CHECK(result->exit_code == 5);
    CHECK(result->out == "out\n");
    CHECK(result->err == "err\n");
  }

  TEST_CASE("stdin larger than a pipe is fed while output is drained") {
    ProcessRunner runner;
    Command command{"cat", {}, Deadline::after(20s)};
    command.input = std::string(700000, 'x');
    const auto result = runner.run(command);
    REQUIRE(result);
    CHECK(result->out == command.input);
  }

  TEST_CASE("a program that ignores its stdin does not end us with SIGPIPE") {
    ProcessRunner runner;
    Command command = sh("exec 0<&-; sleep 0.2; exit 3");
    command.input = std::string(700000, 'x');
    const auto result = runner.run(command);
    REQUIRE(result);
    CHECK(result->exit_code == 3);
  }

  TEST_CASE("the environment is fixed, arguments are never interpreted") {
    ::setenv("LVM_SYSTEM_DIR", "/evil", 1);
    ProcessRunner runner;
    Command command{"env", {}, Deadline::after(10s)};
    command.env = {"DM_DISABLE_UDEV=1"};
    const auto env = runner.run(command);
    ::unsetenv("LVM_SYSTEM_DIR");
    REQUIRE(env);
    CHECK(env->out.find("LVM_SYSTEM_DIR") == std::string::npos);
    CHECK(env->out.find("LC_ALL=C\n") != std::string::npos);
    CHECK(env->out.find("DM_DISABLE_UDEV=1\n") != std::string::npos);
    const auto echo = runner.run(Command{"echo", {"$(id); `id`", "a b"}, Deadline::after(10s)});
    REQUIRE(echo);
    CHECK(echo->out == "$(id); `id` a b\n");
  }

  TEST_CASE("a missing tool names the program and its Debian package") {
    ProcessRunner::Options options;
    options.search_path = {"/nonexistent"};
    ProcessRunner runner(options);
    const auto result = runner.run(Command{"lvcreate", {}, Deadline::after(1s)});
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::tool_missing);
    CHECK(result.error().message == "program lvcreate not found: install the package lvm2");
    const auto absolute = runner.run(Command{"/nonexistent/tool", {}, Deadline::after(1s)});
    REQUIRE_FALSE(absolute);
    CHECK(absolute.error().reason == Reason::tool_missing);
  }

  TEST_CASE("a slow program is stopped at its deadline") {
    ProcessRunner runner = quick_runner();
    const auto begin = Clock::now();
    const auto result = runner.run(sh("echo half >&2; sleep 60", 200ms));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_timeout);
    CHECK(result.error().message.find("half") != std::string::npos);
    CHECK_FALSE(result.error().details.contains("wedged"));
    CHECK(Clock::now() - begin < 5s);
  }

  TEST_CASE("I03: SIGTERM is followed by SIGKILL for the whole group, nothing acts later") {
    const testing::TempDir dir;
    ProcessRunner runner = quick_runner();
    // The shell dies of SIGTERM; its child ignores it and would act later.
    const std::string script = "(trap '' TERM; echo $$ >/dev/null; sh -c 'echo $PPID' > " + (dir / "pid") +
                               "; sleep 60; touch " + (dir / "late") + ") & wait";
    const auto result = runner.run(sh(script, 500ms));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_timeout);
    std::string pid;
    std::ifstream(dir / "pid") >> pid;
    REQUIRE_FALSE(pid.empty());
    CHECK(gone_within(pid, 3s));
    CHECK_FALSE(std::filesystem::exists(dir / "late"));
  }

  TEST_CASE("a passed deadline starts nothing") {
    ProcessRunner runner;
    const auto result = runner.run(Command{"true", {}, Deadline::after(-1s)});
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_timeout);
  }

  TEST_CASE("output is bounded") {
    ProcessRunner runner = quick_runner();
    Command command = sh("yes");
    command.output_limit = 100000;
    const auto result = runner.run(command);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::output_too_large);
  }

  TEST_CASE("a daemon that keeps the pipe open does not keep us") {
    ProcessRunner runner;
    const auto begin = Clock::now();
    const auto result = runner.run(sh("echo ready; (exec sleep 3) & exit 0"));
    REQUIRE(result);
    CHECK(result->out == "ready\n");
    CHECK(Clock::now() - begin < 2s);
  }

  TEST_CASE("death by signal is a failed command") {
    ProcessRunner runner;
    const auto result = runner.run(sh("kill -9 $$"));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_failed);
    CHECK(result.error().details.at("signal") == "9");
  }

  TEST_CASE("no descriptor of ours reaches the program, even one without CLOEXEC") {
    const int leaky = ::open("/dev/null", O_RDONLY);
    REQUIRE(leaky > 2);
    ProcessRunner runner;
    const auto result = runner.run(sh("ls /proc/$$/fd"));
    ::close(leaky);
    REQUIRE(result);
    CHECK(result->out == "0\n1\n2\n");
  }

  TEST_CASE("I03: a child that outlives SIGKILL is wedged, and reaped once it ends") {
    ProcessRunner::Options options;
    options.term_grace = 0ms;
    options.kill_grace = 0ms;
    ProcessRunner runner(options);
    for (int i = 0; i < 20; ++i) {
      const auto result = runner.run(sh("trap '' TERM; sleep 60", 30ms));
      REQUIRE_FALSE(result);
      CHECK(result.error().reason == Reason::command_timeout);
    }
    for (const Deadline until = Deadline::after(5s); !wedged_processes().empty() && !until.passed();)
      std::this_thread::sleep_for(5ms);
    CHECK(wedged_processes().empty());
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
    CHECK(errno == ECHILD);
  }

  TEST_CASE("I03: what hangs in the kernel does not pile up: the same command is not started for ever") {
    ProcessRunner::Options options;
    options.term_grace = 0ms;
    options.kill_grace = 0ms;
    ProcessRunner runner(options);
    // Leaves its process group, so that the signals miss it as they would a task in uninterruptible sleep.
    Command stuck{"perl", {"-e", "setpgrp(0, getpgrp(getppid())) or die; $| = 1; print 'xx'; sleep 60"}};
    stuck.output_limit = 1;  // stopped as soon as it writes
    const auto end_all = [] {
      for (const auto& each : wedged_processes()) ::kill(each.pid, SIGKILL);
      for (const Deadline until = Deadline::after(5s); !wedged_processes().empty() && !until.passed();)
        std::this_thread::sleep_for(5ms);
      return wedged_processes().empty();
    };
    for (std::size_t i = 1; i <= 4; ++i) {
      const auto result = runner.run(stuck);
      REQUIRE_FALSE(result);
      CHECK(result.error().reason == Reason::command_timeout);
      CHECK(result.error().details.contains("wedged"));
      CHECK((result.error().message.find("not started") != std::string::npos) == (i == 4));
      CHECK(wedged_processes().size() == std::min<std::size_t>(i, 3));
    }
    CHECK(runner.run(Command{"true", {}, Deadline::after(20s)}));  // others go on
    REQUIRE(end_all());
    CHECK(runner.run(stuck).error().message.find("not started") == std::string::npos);
    CHECK(end_all());
  }

  TEST_CASE("many threads run programs at once") {
    ProcessRunner runner;
    std::vector<std::thread> threads;
    std::vector<std::string> outputs(8);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      threads.emplace_back([&, i] {
        for (int n = 0; n < 5; ++n) {
          const auto result = runner.run(Command{"echo", {std::to_string(i)}, Deadline::after(20s)});
          outputs[i] += result ? result->out : "failed";
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::string line = std::to_string(i) + "\n";
      CHECK(outputs[i] == line + line + line + line + line);
    }
  }

  TEST_CASE("the observer sees program and result") {
    std::string seen;
    ProcessRunner::Options options;
    options.observer = [&](std::string_view executable, std::string_view result, Clock::duration) {
      seen += std::string(executable) + "=" + std::string(result) + " ";
    };
    options.term_grace = 50ms;
    ProcessRunner runner(options);
    (void)runner.run(Command{"/bin/true", {}, Deadline::after(10s)});
    (void)runner.run(Command{"false", {}, Deadline::after(10s)});
    (void)runner.run(Command{"no-such-tool", {}, Deadline::after(10s)});
    (void)runner.run(Command{"sleep", {"9"}, Deadline::after(30ms)});
    CHECK(seen == "true=ok false=failed no-such-tool=missing sleep=timeout ");
  }

  TEST_CASE("run_checked turns a bad exit code into an error with stderr") {
    ProcessRunner runner;
    const auto result = run_checked(runner, sh("echo one >&2; echo two >&2; exit 7"));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_failed);
    CHECK(result.error().details.at("exit_code") == "7");
    CHECK(result.error().message == "sh failed with exit code 7: one two");
  }
}
