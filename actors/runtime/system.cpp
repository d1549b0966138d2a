#include "actors/runtime/system.hpp"

#include <csignal>
#include <thread>

#include <unistd.h>

namespace pillar::runtime {

namespace {

sigset_t termination_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

System::System(SystemOptions options)
    : services_(std::move(options.services)), config_(std::make_unique<caf::actor_system_config>()) {
  // Work sharing: stealing burns a quarter of a core while idle and is slower when foreign threads feed
  // actors.
  config_->set("scheduler.policy", caf::atom("sharing"));
  config_->set("scheduler.max-threads", options.threads);
  config_->set("scheduler.max-throughput", options.max_throughput);
  system_ = std::make_unique<caf::actor_system>(*config_);
}

System::~System() { shutdown(std::chrono::seconds(5)); }

void System::keep_root(caf::strong_actor_ptr root) {
  const std::lock_guard lock(mutex_);
  roots_.push_back(std::move(root));
}

bool System::shutdown(Clock::duration limit) {
  if (stopped_) return true;
  stopped_ = true;
  std::vector<caf::strong_actor_ptr> roots;
  {
    const std::lock_guard lock(mutex_);
    roots.swap(roots_);
  }
  while (!roots.empty()) {
    caf::anon_send_exit(caf::actor_cast<caf::actor>(roots.back()), caf::exit_reason::user_shutdown);
    roots.pop_back();
  }
  const auto deadline = Deadline::after(limit);
  while (system_->registry().running() > 0) {
    if (deadline.passed()) {
      system_->await_actors_before_shutdown(false);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void block_termination_signals() {
  const auto set = termination_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int wait_for_termination() {
  const auto set = termination_signals();
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  return number;
}

void request_termination() { ::kill(::getpid(), SIGTERM); }

}  // namespace pillar::runtime
