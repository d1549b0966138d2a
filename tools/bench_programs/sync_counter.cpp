// A library to preload: counts and times fsync and fdatasync of a program, and makes them do nothing or last
// longer, so that a run shows what durable writes cost. The numbers live in the file PILLAR_SYNC_FILE, which
// tools/bench makes, reads and steers while the program runs.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <mutex>

namespace {

/// Layout of the file.
struct Counters {
  std::uint64_t skip;              ///< set from outside: durable writes return at once
  std::uint64_t calls;             ///< finished, skipped ones included
  std::uint64_t nanoseconds;       ///< spent in them, all threads together
  std::uint64_t busy_nanoseconds;  ///< of wall time with at least one under way
  std::uint64_t delay;             ///< set from outside: nanoseconds added to each, as on a slower disk
};

std::uint64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

Counters* map_file() {
  static Counters unused{};
  const char* path = std::getenv("PILLAR_SYNC_FILE");
  const int fd = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return &unused;
  void* memory = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? &unused : static_cast<Counters*>(memory);
}

int timed(const char* name, int fd) {
  static std::mutex mutex;
  static Counters* const counters = map_file();
  static unsigned under_way = 0;
  static std::uint64_t busy_since = 0;
  using Call = int (*)(int);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the only form dlsym offers.
  const auto real = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
  const std::uint64_t begin = now();
  bool skip = false;
  timespec delay{};
  {
    const std::lock_guard lock(mutex);
    if (under_way++ == 0) busy_since = begin;
    skip = counters->skip != 0;
    delay.tv_nsec = static_cast<long>(counters->delay);  // below a second
  }
  const int result = skip || real == nullptr ? 0 : real(fd);
  if (delay.tv_nsec != 0) ::clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, nullptr);
  const std::lock_guard lock(mutex);
  const std::uint64_t end = now();
  ++counters->calls;
  counters->nanoseconds += end - begin;
  if (--under_way == 0) counters->busy_nanoseconds += end - busy_since;
  return result;
}

}  // namespace

extern "C" {
int fsync(int fd) { return timed("fsync", fd); }
int fdatasync(int fd) { return timed("fdatasync", fd); }
}
