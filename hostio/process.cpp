#include "hostio/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "hostio/block_device.hpp"

namespace pillar::hostio {
namespace {

using std::chrono::milliseconds;

// Everything a program may see of our environment. Programs translate messages and obey variables such as
// LVM_SYSTEM_DIR; only what is set here reaches them.
constexpr std::array k_environment{"LC_ALL=C", "LANG=C", "TZ=UTC", "HOME=/",
                                   "PATH=/usr/sbin:/usr/bin:/sbin:/bin"};

const std::map<std::string_view, std::string_view> k_packages{{"lvs", "lvm2"},
                                                              {"vgs", "lvm2"},
                                                              {"pvs", "lvm2"},
                                                              {"lvcreate", "lvm2"},
                                                              {"lvextend", "lvm2"},
                                                              {"lvremove", "lvm2"},
                                                              {"lvchange", "lvm2"},
                                                              {"vgmknodes", "lvm2"},
                                                              {"modprobe", "kmod"},
                                                              {"mkfs.ext4", "e2fsprogs"},
                                                              {"e2fsck", "e2fsprogs"},
                                                              {"resize2fs", "e2fsprogs"},
                                                              {"dumpe2fs", "e2fsprogs"},
                                                              {"mkfs.xfs", "xfsprogs"},
                                                              {"xfs_growfs", "xfsprogs"},
                                                              {"xfs_repair", "xfsprogs"},
                                                              {"xfs_db", "xfsprogs"},
                                                              {"mount", "mount"},
                                                              {"umount", "mount"},
                                                              {"blkid", "util-linux"},
                                                              {"zfs", "zfsutils-linux"},
                                                              {"zpool", "zfsutils-linux"}};

// --- children that could not be killed ------------------------------------------------------------------

std::mutex& wedged_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct Wedged {
  WedgedProcess process;
  std::string command;  // its command line
};

std::vector<Wedged>& wedged_list() {
  static std::vector<Wedged> list;
  return list;
}

void reap_wedged_locked() {
  std::erase_if(wedged_list(),
                [](const Wedged& w) { return ::waitpid(w.process.pid, nullptr, WNOHANG) != 0; });
}

void remember_wedged(pid_t pid, const Command& command) {
  const std::scoped_lock lock(wedged_mutex());
  wedged_list().push_back({{pid, command.program, Clock::now()}, command.text()});
}

// Reaps, and refuses what would only hang again: without a limit, what is polled (the health of a file system
// on a stuck disk) would pile up for as long as the disk is stuck.
Result<void> refuse_pile(const Command& command) {
  constexpr std::ptrdiff_t most_alike = 3;
  const std::scoped_lock lock(wedged_mutex());
  reap_wedged_locked();
  if (wedged_list().empty()) return {};
  const std::string text = command.text();
  const auto alike = std::count_if(wedged_list().begin(), wedged_list().end(),
                                   [&](const Wedged& each) { return each.command == text; });
  if (alike < most_alike) return {};
  return fail(Reason::command_timeout,
              text + " not started: " + std::to_string(alike) +
                  " earlier runs of it hang in the kernel; it is tried again once one of them ends",
              {{"program", command.program}, {"wedged", "true"}});
}

// --- spawning ---------------------------------------------------------------------------------------------

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

std::optional<Pipe> make_pipe() {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

struct SpawnAttributes {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};

  SpawnAttributes() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  ~SpawnAttributes() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Child {
  pid_t pid = 0;
  UniqueFd pidfd;
  UniqueFd in;  // our end of its stdin
  UniqueFd out;
  UniqueFd err;
};

// Own process group, default signals, nothing inherited but the three pipes (also descriptors that a library
// opened without CLOEXEC stay with us).
int spawn(const std::string& path, const Command& command, Pipe& in, Pipe& out, Pipe& err, pid_t& pid) {
  SpawnAttributes spawn;
  ::posix_spawn_file_actions_adddup2(&spawn.actions, in.read.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&spawn.actions, out.write.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&spawn.actions, err.write.get(), STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&spawn.actions, STDERR_FILENO + 1);
  ::posix_spawn_file_actions_addchdir_np(&spawn.actions, "/");

  sigset_t all{};
  sigset_t none{};
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&spawn.attributes, &all);
  ::posix_spawnattr_setsigmask(&spawn.attributes, &none);
  ::posix_spawnattr_setpgroup(&spawn.attributes, 0);
  ::posix_spawnattr_setflags(&spawn.attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> argv{command.program};
  argv.insert(argv.end(), command.args.begin(), command.args.end());
  std::vector<std::string> env(k_environment.begin(), k_environment.end());
  env.insert(env.end(), command.env.begin(), command.env.end());
  return ::posix_spawn(&pid, path.c_str(), &spawn.actions, &spawn.attributes, pointers(argv).data(),
                       pointers(env).data());
}

Result<Child> start(const std::string& path, const Command& command) {
  std::optional<Pipe> in = make_pipe();
  std::optional<Pipe> out = make_pipe();
  std::optional<Pipe> err = make_pipe();
  if (!in || !out || !err) return tl::unexpected(errno_error(errno, "pipe for " + command.program));
  Child child;
  if (const int error = spawn(path, command, *in, *out, *err, child.pid); error != 0)
    return tl::unexpected(errno_error(error, "start " + path, Reason::tool_missing));
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  child.in = std::move(in->write);
  child.out = std::move(out->read);
  child.err = std::move(err->read);
  for (const int fd : {child.in.get(), child.out.get(), child.err.get()}) set_nonblocking(fd);
  return child;
}

// --- supervising ------------------------------------------------------------------------------------------

// Feeds and drains one child. All waiting happens in poll on the pipes and the pidfd, so a child that closes
// its output but lives on, and one whose grandchild keeps the pipe open, are both handled.
class Supervisor {
 public:
  Supervisor(Child& child, const Command& command) : child_(child), command_(command) {}

  enum class End : std::uint8_t { exited, deadline, too_large };

  End run() {
    for (;;) {
      if (ended()) {
        read_all();
        return too_large_ ? End::too_large : End::exited;
      }
      if (too_large_) return End::too_large;
      if (command_.deadline.passed()) return End::deadline;
      wait(poll_timeout());
      write_input();
      read_all();
    }
  }

  // Waits until the child has ended; it stays a zombie, so that its process group id stays ours.
  bool ends_within(milliseconds span) {
    const Deadline until = Deadline::after(span);
    while (!ended()) {
      if (until.passed()) return false;
      pollfd fd{child_.pidfd.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<milliseconds>(until.left(milliseconds(50)));
      if (child_.pidfd)
        ::poll(&fd, 1, static_cast<int>(left.count()));
      else
        std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  // Reaps the ended child and returns its wait status.
  int reap() const {
    int status = 0;
    pid_t rc = 0;
    do rc = ::waitpid(child_.pid, &status, 0);
    while (rc < 0 && errno == EINTR);
    return status;
  }

  std::string out;
  std::string err;

 private:
  bool ended() const {
    siginfo_t info{};
    const int rc = ::waitid(P_PID, static_cast<id_t>(child_.pid), &info, WEXITED | WNOHANG | WNOWAIT);
    return (rc == 0 && info.si_pid == child_.pid) || (rc != 0 && errno == ECHILD);
  }

  int poll_timeout() const {
    // Without a pidfd (descriptor limit reached) the end of the child is found by polling waitpid.
    const milliseconds cap = child_.pidfd ? milliseconds(1000) : milliseconds(5);
    return static_cast<int>(std::chrono::ceil<milliseconds>(command_.deadline.left(cap)).count());
  }

  void wait(int timeout_ms) {
    if (written_ == command_.input.size()) child_.in.reset();
    std::array<pollfd, 4> fds{pollfd{child_.pidfd ? child_.pidfd.get() : -1, POLLIN, 0},
                              pollfd{child_.in ? child_.in.get() : -1, POLLOUT, 0},
                              pollfd{child_.out ? child_.out.get() : -1, POLLIN, 0},
                              pollfd{child_.err ? child_.err.get() : -1, POLLIN, 0}};
    ::poll(fds.data(), fds.size(), timeout_ms);
  }

  void write_input() {
    while (child_.in && written_ < command_.input.size()) {
      const ssize_t n =
          ::write(child_.in.get(), command_.input.data() + written_, command_.input.size() - written_);
      if (n > 0) {
        written_ += static_cast<std::size_t>(n);
      } else if (n < 0 && errno != EINTR) {
        if (errno != EAGAIN) child_.in.reset();  // it does not want to read on
        return;
      }
    }
  }

  void read_all() {
    drain(child_.out, out);
    drain(child_.err, err);
  }

  void drain(UniqueFd& fd, std::string& text) {
    std::array<char, 16384> buffer{};
    while (fd && !too_large_) {
      const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
      if (n > 0) {
        text.append(buffer.data(), static_cast<std::size_t>(n));
        too_large_ = text.size() > command_.output_limit;
      } else if (n == 0) {
        fd.reset();
      } else if (errno != EINTR) {
        if (errno != EAGAIN) fd.reset();
        return;
      }
    }
  }

  Child& child_;
  const Command& command_;
  std::size_t written_ = 0;
  bool too_large_ = false;
};

// SIGPIPE would end the whole process when a child closes its stdin early; it is blocked for this thread
// while a child runs and a pending one is taken away afterwards.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &old_);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  ~SigpipeGuard() {
    const timespec now{};
    while (::sigismember(&old_, SIGPIPE) == 0 && ::sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t old_{};
};

std::string first_lines(const std::string& text, std::size_t limit = 600) {
  std::string result = text.substr(0, limit);
  while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) result.pop_back();
  std::replace(result.begin(), result.end(), '\n', ' ');
  return result;
}

std::string milliseconds_text(Clock::duration span) {
  return std::to_string(std::chrono::duration_cast<milliseconds>(span).count()) + " ms";
}

std::string_view result_label(const Result<CommandResult>& result) {
  if (result) return result->exit_code == 0 ? "ok" : "failed";
  switch (result.error().reason) {
    case Reason::command_timeout:
      return result.error().details.contains("wedged") ? "wedged" : "timeout";
    case Reason::tool_missing:
      return "missing";
    case Reason::output_too_large:
      return "too_large";
    default:
      return "error";
  }
}

}  // namespace

std::string Command::text() const {
  std::string result = program;
  for (const std::string& arg : args) result += " " + arg;
  return result;
}

std::string debian_package_of(std::string_view program) {
  const auto it = k_packages.find(program);
  return std::string(it == k_packages.end() ? program : it->second);
}

Result<std::string> find_program(std::string_view program, const std::vector<std::string>& search_path) {
  if (program.starts_with('/')) return std::string(program);
  for (const std::string& directory : search_path) {
    std::string path = directory + "/" + std::string(program);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  const std::string package = debian_package_of(program);
  return fail(Reason::tool_missing,
              "program " + std::string(program) + " not found: install the package " + package,
              {{"program", std::string(program)}, {"package", package}});
}

std::vector<WedgedProcess> wedged_processes() {
  const std::scoped_lock lock(wedged_mutex());
  reap_wedged_locked();
  std::vector<WedgedProcess> processes;
  for (const Wedged& each : wedged_list()) processes.push_back(each.process);
  return processes;
}

Result<CommandResult> run_checked(CommandRunner& runner, const Command& command) {
  Result<CommandResult> result = runner.run(command);
  if (!result || result->exit_code == 0) return result;
  const std::string& said = result->err.empty() ? result->out : result->err;
  return fail(Reason::command_failed,
              command.program + " failed with exit code " + std::to_string(result->exit_code) + ": " +
                  first_lines(said),
              {{"program", command.program}, {"exit_code", std::to_string(result->exit_code)}});
}

ProcessRunner::ProcessRunner() : ProcessRunner(Options{}) {}
ProcessRunner::ProcessRunner(Options options) : options_(std::move(options)) {}

Result<CommandResult> ProcessRunner::run(const Command& command) {
  const auto start_time = Clock::now();
  Result<CommandResult> result = run_unobserved(command);
  if (options_.observer) {
    const std::string name = command.program.substr(command.program.rfind('/') + 1);
    options_.observer(name, result_label(result), Clock::now() - start_time);
  }
  return result;
}

Result<CommandResult> ProcessRunner::run_unobserved(const Command& command) const {
  if (auto free = refuse_pile(command); !free) return tl::unexpected(free.error());
  if (command.deadline.passed())
    return fail(Reason::command_timeout, command.program + " not started: no time left");
  const Result<std::string> path = find_program(command.program, options_.search_path);
  if (!path) return tl::unexpected(path.error());

  const SigpipeGuard no_sigpipe;
  const auto start_time = Clock::now();
  Result<Child> child = start(*path, command);
  if (!child) return tl::unexpected(child.error());
  Supervisor supervisor(*child, command);
  const Supervisor::End end = supervisor.run();
  if (end != Supervisor::End::exited) {
    ::kill(-child->pid, SIGTERM);
    supervisor.ends_within(options_.term_grace);
    // The whole group: a descendant that ignores SIGTERM must not act later (row I03).
    ::kill(-child->pid, SIGKILL);
    if (!supervisor.ends_within(options_.kill_grace)) {
      remember_wedged(child->pid, command);
      return fail(Reason::command_timeout,
                  command.text() + " (pid " + std::to_string(child->pid) +
                      ") hangs in the kernel and cannot be killed, after " +
                      milliseconds_text(Clock::now() - start_time),
                  {{"program", command.program}, {"wedged", "true"}});
    }
  }
  const int status = supervisor.reap();
  if (end == Supervisor::End::deadline)
    return fail(Reason::command_timeout,
                command.text() + " was stopped after " + milliseconds_text(Clock::now() - start_time) + ": " +
                    first_lines(supervisor.err),
                {{"program", command.program}});
  if (end == Supervisor::End::too_large)
    return fail(Reason::output_too_large,
                command.text() + " wrote more than " + std::to_string(command.output_limit) + " bytes",
                {{"program", command.program}});
  if (WIFSIGNALED(status))
    return fail(Reason::command_failed,
                command.text() + " was ended by signal " + std::to_string(WTERMSIG(status)) + ": " +
                    first_lines(supervisor.err),
                {{"program", command.program}, {"signal", std::to_string(WTERMSIG(status))}});
  return CommandResult{WEXITSTATUS(status), std::move(supervisor.out), std::move(supervisor.err)};
}

}  // namespace pillar::hostio
