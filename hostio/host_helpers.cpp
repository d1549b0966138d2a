#include "hostio/host_helpers.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <nlohmann/json.hpp>

#include "hostio/block_device.hpp"
#include "hostio/helper_process.hpp"
#include "hostio/mounts.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "hostio/probe.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

using nlohmann::json;

std::string text(const json& input, const char* key) { return input.at(key).get<std::string>(); }

DeviceNumber number_of(const json& input) {
  return DeviceNumber::parse(text(input, "number")).value_or(DeviceNumber{});
}

json errno_answer(int code) { return json{{"errno", code}}; }

Result<json> mount_verb(const json& input) {
  if (auto mounted = mount_here(mount_request_from(input)); !mounted) return tl::unexpected(mounted.error());
  return json::object();
}

Result<json> umount_verb(const json& input) {
  const auto path = text(input, "path");
  if (::umount2(path.c_str(), UMOUNT_NOFOLLOW) == 0) return json::object();
  const int code = errno;
  if (code == EBUSY)
    return fail(Reason::device_busy, Code::unavailable,
                path + " is in use: a process has files open or stands in it; end it and try again");
  if (code == EINVAL || code == ENOENT) return fail(Reason::not_found, path + " is not a mount point");
  return tl::unexpected(errno_error(code, "unmount " + path));
}

Result<json> statfs_verb(const json& input) {
  const auto path = text(input, "path");
  struct statfs st {};
  if (::statfs(path.c_str(), &st) != 0) return tl::unexpected(errno_error(errno, path, Reason::not_found));
  return json{{"block_size", static_cast<std::uint64_t>(st.f_frsize != 0 ? st.f_frsize : st.f_bsize)},
              {"blocks", st.f_blocks},
              {"free", st.f_bfree},
              {"available", st.f_bavail},
              {"files", st.f_files},
              {"files_free", st.f_ffree}};
}

Result<json> syncfs_verb(const json& input) {
  const auto path = text(input, "path");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return tl::unexpected(errno_error(errno, "open " + path, Reason::not_found));
  if (::syncfs(fd.get()) != 0) return tl::unexpected(errno_error(errno, "flush " + path));
  return json::object();
}

Result<json> probe_verb(const json& input) {
  const auto node = text(input, "node");
  const auto fd = open_block_device(node, number_of(input), O_RDONLY);
  if (!fd) return tl::unexpected(fd.error());
  // By the descriptor, so that what was proved to be the device is what is read.
  const auto content = probe_here("/proc/self/fd/" + std::to_string(fd->get()));
  if (!content) return tl::unexpected(content.error());
  return to_json(*content);
}

Result<json> clear_verb(const json& input) {
  if (auto cleared = clear_here(text(input, "node"), number_of(input)); !cleared)
    return tl::unexpected(cleared.error());
  return json::object();
}

Result<json> open_check_verb(const json& input) {
  constexpr std::size_t block = 4096;
  const auto node = text(input, "node");
  const auto fd = open_block_device(node, number_of(input), O_RDONLY | O_DIRECT);
  if (!fd) return tl::unexpected(fd.error());
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(block, block), &std::free);
  const auto got = buffer ? ::pread(fd->get(), buffer.get(), block, 0) : -1;
  if (got > 0) return json::object();
  return fail(Reason::device_unreadable, node + " opens but its first block cannot be read: " +
                                             (got == 0 ? "end of device" : std::strerror(errno)));
}

/// A full filesystem is alive; whether its device is, a flush tells.
int flush_only(int directory) { return ::syncfs(directory) == 0 ? 0 : errno; }

bool means_full(int code) { return code == ENOSPC || code == EDQUOT || code == EOPNOTSUPP || code == EISDIR; }

int check_by_writing(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return errno;
  const UniqueFd file(::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return means_full(errno) ? flush_only(directory.get()) : errno;
  const std::array<char, 512> block{};
  if (::write(file.get(), block.data(), block.size()) < 0)
    return means_full(errno) ? flush_only(directory.get()) : errno;
  if (::fsync(file.get()) != 0) return means_full(errno) ? flush_only(directory.get()) : errno;
  return 0;
}

Result<json> write_check_verb(const json& input) {
  return errno_answer(check_by_writing(text(input, "path")));
}

Result<json> list_check_verb(const json& input) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(text(input, "path").c_str()), ::closedir);
  if (!directory) return errno_answer(errno);
  errno = 0;
  const bool any = ::readdir(directory.get()) != nullptr;
  return errno_answer(any ? 0 : errno);
}

Result<json> device_read_only_verb(const json& input) {
  const bool read_only = input.at("read_only").get<bool>();
  if (auto set = set_block_device_read_only(text(input, "node"), number_of(input), read_only); !set)
    return tl::unexpected(set.error());
  return json::object();
}

Result<json> nvme_connect_verb(const json& input) {
  const auto options = text(input, "options");
  const UniqueFd fd(::open(text(input, "device").c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return errno_answer(errno);
  if (::write(fd.get(), options.data(), options.size()) < 0) return errno_answer(errno);
  std::array<char, 256> reply{};
  const auto got = ::read(fd.get(), reply.data(), reply.size());
  json answer = errno_answer(0);
  if (got <= 0) return answer;
  if (const auto made = parse_fabrics_reply({reply.data(), static_cast<std::size_t>(got)}))
    answer["instance"] = made->instance;
  return answer;
}

Result<json> nvme_delete_verb(const json& input) {
  const auto dir = text(input, "dir");
  const auto nqn = text(input, "nqn");
  // Looked at again here: the controller's name may belong to another subsystem by now (row D16).
  const auto seen = read_attribute(dir + "/subsysnqn");
  if (!seen || *seen != nqn) return json::object();
  const int code = write_attribute(dir + "/delete_controller", "1");
  if (code == 0 || code == ENOENT || code == ENODEV || code == ENXIO) return json::object();
  return tl::unexpected(errno_error(code, "end session " + dir));
}

}  // namespace

const std::vector<HelperVerb>& host_helper_verbs() {
  static const std::vector<HelperVerb> verbs{
      {"mount", mount_verb},
      {"umount", umount_verb},
      {"statfs", statfs_verb},
      {"syncfs", syncfs_verb},
      {"probe", probe_verb},
      {"clear-signatures", clear_verb},
      {"open-check", open_check_verb},
      {"write-check", write_check_verb},
      {"list-check", list_check_verb},
      {"device-read-only", device_read_only_verb},
      {"nvme-connect", nvme_connect_verb},
      {"nvme-delete", nvme_delete_verb},
  };
  return verbs;
}

Result<json> run_host_verb_here(std::string_view verb, const json& input, Deadline /*deadline*/) {
  const auto& verbs = host_helper_verbs();
  const auto found =
      std::find_if(verbs.begin(), verbs.end(), [&](const HelperVerb& one) { return one.name == verb; });
  if (found == verbs.end()) return fail(Reason::internal, "no helper verb '" + std::string(verb) + "'");
  try {
    return found->body(input);
  } catch (const json::exception& bad) {
    return fail(Reason::internal, "helper " + std::string(verb) + ": " + bad.what());
  }
}

void register_host_helpers() {
  for (const auto& verb : host_helper_verbs()) {
    const std::string name(verb.name);
    register_helper(name, [name](const std::vector<std::string>& args) -> Result<json> {
      const auto input = json::parse(args.empty() ? std::string() : args.front(), nullptr, false);
      if (!input.is_object()) return fail(Reason::internal, "helper " + name + " got no JSON object");
      return run_host_verb_here(name, input, Deadline::never());
    });
  }
}

HelperCall helper_call(HelperRunner& runner) {
  return [&runner](std::string_view verb, const json& input, Deadline deadline) {
    return runner.run(std::string(verb), {input.dump()}, deadline);
  };
}

}  // namespace pillar::hostio
