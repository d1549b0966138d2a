#include "hostio/durable_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "hostio/block_device.hpp"

namespace pillar::hostio {
namespace {

constexpr std::string_view k_temp_infix = ".tmp-";

tl::unexpected<Error> write_error(int errno_value, const std::string& what) {
  Error error = errno_error(errno_value, what);
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
      return fail(Reason::state_unwritable, error.message + "; free space on that file system",
                  std::move(error.details));
    case EROFS:
      return fail(Reason::state_unwritable, error.message + "; remount that file system writable",
                  std::move(error.details));
    case EACCES:
    case EPERM:
    case ENOENT:
    case ENOTDIR:
      return fail(
          Reason::state_unwritable,
          error.message + "; the directory must exist and belong to uid " + std::to_string(::geteuid()),
          std::move(error.details));
    default:
      return tl::unexpected(std::move(error));
  }
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Hidden, on the same file system, unique in this process; a name left by a crashed process with our pid
// makes O_EXCL fail and the next number is taken.
std::string temp_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  const std::string name = path.substr(path.rfind('/') + 1);
  return directory_of(path) + "/." + name + std::string(k_temp_infix) + std::to_string(::getpid()) + "-" +
         std::to_string(counter.fetch_add(1));
}

Result<void> step(const DurableHook& hook, std::string_view name) {
  if (hook) return hook(name);
  return {};
}

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return write_error(errno, "write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<UniqueFd> create_temp(const std::string& path, mode_t mode, std::string& temp) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    temp = temp_name(path);
    UniqueFd fd(::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (fd) return fd;
    if (errno != EEXIST && errno != EINTR) return write_error(errno, "create " + temp);
  }
  return write_error(EEXIST, "create " + temp);
}

Result<void> sync_directory(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return write_error(errno, "open directory " + directory);
  if (::fsync(fd.get()) != 0) return write_error(errno, "sync directory " + directory);
  return {};
}

struct Temp {
  std::string path;
  bool cut = false;  // stopped by the hook: stays on disk like after a power cut
};

// create -> write -> sync; on a real failure the temp file is removed.
Result<void> write_temp(const std::string& path, std::string_view bytes, mode_t mode, const DurableHook& hook,
                        Temp& temp) {
  const auto cut = [&](Result<void> result) {
    temp.cut = true;
    return result;
  };
  if (auto r = step(hook, "create"); !r) return cut(r);
  const Result<UniqueFd> fd = create_temp(path, mode, temp.path);
  if (!fd) return tl::unexpected(fd.error());
  if (auto r = step(hook, "write"); !r) return cut(r);
  Result<void> result = write_all(fd->get(), bytes, temp.path);
  if (result) {
    if (auto r = step(hook, "sync"); !r) return cut(r);
    // open() applied the umask; the mode is a promise of ours, so set it again.
    if (::fchmod(fd->get(), mode) != 0 || ::fdatasync(fd->get()) != 0)
      result = write_error(errno, "sync " + temp.path);
  }
  if (!result) ::unlink(temp.path.c_str());
  return result;
}

}  // namespace

DurableBatch::DurableBatch(std::string directory, DurableHook hook)
    : directory_(std::move(directory)), hook_(std::move(hook)) {}

DurableBatch::~DurableBatch() {
  if (cut_) return;
  for (const Entry& entry : entries_)
    if (!entry.temp.empty()) ::unlink(entry.temp.c_str());
}

Result<void> DurableBatch::stage(const std::string& name, std::string_view bytes, mode_t mode) {
  const std::string path = directory_ + "/" + name;
  Temp temp;
  Result<void> result = write_temp(path, bytes, mode, hook_, temp);
  cut_ = cut_ || temp.cut;
  if (result) entries_.push_back({path, temp.path});
  return result;
}

Result<void> DurableBatch::stage_removal(const std::string& name) {
  entries_.push_back({directory_ + "/" + name, ""});
  return {};
}

Result<void> DurableBatch::apply(const Entry& entry) const {
  if (entry.temp.empty()) {
    if (auto r = step(hook_, "remove"); !r) return r;
    if (::unlink(entry.path.c_str()) != 0 && errno != ENOENT)
      return write_error(errno, "remove " + entry.path);
    return {};
  }
  if (auto r = step(hook_, "rename"); !r) return r;
  if (::rename(entry.temp.c_str(), entry.path.c_str()) != 0) {
    const int error = errno;
    ::unlink(entry.temp.c_str());
    return write_error(error, "rename to " + entry.path);
  }
  return {};
}

std::vector<Result<void>> DurableBatch::commit() {
  std::vector<Result<void>> results;
  if (entries_.empty()) return results;
  results.reserve(entries_.size());
  for (const Entry& entry : std::exchange(entries_, {})) results.push_back(apply(entry));
  Result<void> synced = step(hook_, "sync-dir");
  if (synced) synced = sync_directory(directory_);
  if (!synced)
    for (Result<void>& result : results)
      if (result) result = synced;
  return results;
}

Result<void> write_file_durable(const std::string& path, std::string_view bytes, mode_t mode,
                                const DurableHook& hook) {
  DurableBatch batch(directory_of(path), hook);
  if (auto r = batch.stage(path.substr(path.rfind('/') + 1), bytes, mode); !r) return r;
  return batch.commit().front();
}

Result<void> remove_durable(const std::string& path, const DurableHook& hook) {
  DurableBatch batch(directory_of(path), hook);
  if (auto r = batch.stage_removal(path.substr(path.rfind('/') + 1)); !r) return r;
  return batch.commit().front();
}

Result<std::string> read_file(const std::string& path, std::size_t limit) {
  // O_NONBLOCK: a fifo put in the place of the file must not hang us.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return tl::unexpected(errno_error(errno, "open " + path, Reason::not_found));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return tl::unexpected(errno_error(errno, "stat " + path));
  if (!S_ISREG(info.st_mode)) return fail(Reason::state_corrupt, path + " is not a regular file");
  std::string text;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tl::unexpected(errno_error(errno, "read " + path));
    if (n == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > limit)
      return fail(Reason::state_corrupt, path + " is larger than " + std::to_string(limit) + " bytes");
  }
}

bool is_full(const Error& error) {
  const auto at = error.details.find("errno");
  return at != error.details.end() &&
         (at->second == std::to_string(ENOSPC) || at->second == std::to_string(EDQUOT));
}

Result<void> ensure_state_directory(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return write_error(errno, "create directory " + path);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && (errno == ELOOP || errno == ENOTDIR))
    return fail(Reason::state_unwritable,
                path + " is a symbolic link or no directory; the state directory must be a real directory");
  if (!fd) return write_error(errno, "open directory " + path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return tl::unexpected(errno_error(errno, "stat " + path));
  if (info.st_uid != ::geteuid())
    return fail(Reason::state_unwritable, path + " belongs to uid " + std::to_string(info.st_uid) +
                                              "; it must belong to uid " + std::to_string(::geteuid()));
  if ((info.st_mode & 07777) != 0700 && ::fchmod(fd.get(), 0700) != 0)
    return write_error(errno, "set mode 0700 of " + path);
  // Only a real write tells: a read-only mount and a full one both pass access(2).
  const std::string probe = path + "/.writable";
  const auto written = write_file_durable(probe, "ok\n");
  if (!written && is_full(written.error())) return {};
  if (!written) return written;
  return remove_durable(probe);
}

Result<std::size_t> remove_leftover_temps(const std::string& directory) {
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return tl::unexpected(errno_error(errno, "list " + directory));
  std::vector<std::string> leftovers;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = &entry->d_name[0];
    if (name.starts_with('.') && name.find(k_temp_infix) != std::string::npos) leftovers.push_back(name);
  }
  ::closedir(dir);
  for (const std::string& name : leftovers)
    if (::unlink((directory + "/" + name).c_str()) != 0 && errno != ENOENT)
      return write_error(errno, "remove " + directory + "/" + name);
  return leftovers.size();
}

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < t.size(); ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1U) != 0 ? (c >> 1U) ^ 0x82F63B78U : c >> 1U;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFFU] ^ (crc >> 8U);
  return crc ^ 0xFFFFFFFFU;
}

}  // namespace pillar::hostio
