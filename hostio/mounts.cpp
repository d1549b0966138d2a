#include "hostio/mounts.hpp"

#include <fcntl.h>
#include <libmount/libmount.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "hostio/durable_file.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

constexpr int k_mountinfo_reads = 5;
constexpr std::size_t k_mountinfo_limit = std::size_t{64} << 20U;

/// The per-mount attributes in both kernel languages: of fsmount(2) and of mount(2).
struct AttributeRow {
  std::string_view name;
  unsigned attr;
  unsigned long flag;
};
constexpr std::array k_attributes{
    AttributeRow{"nosuid", MOUNT_ATTR_NOSUID, MS_NOSUID},
    AttributeRow{"nodev", MOUNT_ATTR_NODEV, MS_NODEV},
    AttributeRow{"noexec", MOUNT_ATTR_NOEXEC, MS_NOEXEC},
    AttributeRow{"noatime", MOUNT_ATTR_NOATIME, MS_NOATIME},
    AttributeRow{"strictatime", MOUNT_ATTR_STRICTATIME, MS_STRICTATIME},
    AttributeRow{"relatime", MOUNT_ATTR_RELATIME, MS_RELATIME},
    AttributeRow{"nodiratime", MOUNT_ATTR_NODIRATIME, MS_NODIRATIME},
};

std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

MountEntry entry_of(libmnt_fs* fs) {
  MountEntry entry;
  entry.id = mnt_fs_get_id(fs);
  entry.parent = mnt_fs_get_parent_id(fs);
  entry.target = text_or_empty(mnt_fs_get_target(fs));
  entry.source = text_or_empty(mnt_fs_get_source(fs));
  entry.root = text_or_empty(mnt_fs_get_root(fs));
  entry.fs_type = text_or_empty(mnt_fs_get_fstype(fs));
  entry.device = DeviceNumber::of(mnt_fs_get_devno(fs));
  entry.vfs_options = text_or_empty(mnt_fs_get_vfs_options(fs));
  entry.fs_options = text_or_empty(mnt_fs_get_fs_options(fs));
  const std::string tags = text_or_empty(mnt_fs_get_optional_fields(fs));
  entry.shared = tags.find("shared:") != std::string::npos;
  entry.slave = tags.find("master:") != std::string::npos;
  return entry;
}

std::string_view parent_prefix(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

/// Taking a fresh mount away again after a later step of making it failed.
void undo_mount(const std::string& target) { ::umount2(target.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH); }

Result<MountEntry> top_layer(const HostRoots& roots, const std::string& path, std::string_view what) {
  const auto table = MountTable::read(roots);
  if (!table) return tl::unexpected(table.error());
  const auto layers = table->layers_at(path);
  if (layers.empty())
    return fail(Reason::not_staged,
                std::string(what) + " " + path + " is not a mount point; stage the volume again");
  return layers.front();
}

Result<void> refuse_occupied(const HostRoots& roots, const std::string& target) {
  const auto table = MountTable::read(roots);
  if (!table) return tl::unexpected(table.error());
  const auto layers = table->layers_at(target);
  if (layers.empty()) return {};
  return fail(Reason::target_occupied, target + " is already a mount point of " + layers.front().source +
                                           " (" + layers.front().fs_type + ", device " +
                                           layers.front().device.str() + "); unmount it first");
}

Result<void> bind_call(const std::string& source, const std::string& target) {
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0) return {};
  return tl::unexpected(errno_error(errno, "bind " + source + " to " + target, Reason::not_found));
}

/// The flags that `options` (mountinfo form) and `attributes` stand for.
unsigned long bind_flags(std::string_view options, const std::vector<std::string>& attributes,
                         bool read_only) {
  unsigned long flags = read_only ? static_cast<unsigned long>(MS_RDONLY) : 0UL;
  for (const auto& row : k_attributes) {
    const bool asked = std::find(attributes.begin(), attributes.end(), row.name) != attributes.end();
    if (asked || has_mount_option(options, row.name)) flags |= row.flag;
  }
  // An access-time mode that is asked for replaces the one that is there.
  if ((flags & MS_NOATIME) != 0 || (flags & MS_STRICTATIME) != 0)
    flags &= ~static_cast<unsigned long>(MS_RELATIME);
  return flags;
}

Result<void> restrict_bind(const HostRoots& roots, const std::string& target, bool read_only,
                           const std::vector<std::string>& attributes) {
  const auto made = top_layer(roots, target, "new mount");
  if (!made) return tl::unexpected(made.error());
  const unsigned long flags =
      MS_BIND | MS_REMOUNT |
      bind_flags(made->vfs_options, attributes, read_only || has_mount_option(made->vfs_options, "ro"));
  if (::mount(nullptr, target.c_str(), nullptr, flags, nullptr) != 0)
    return tl::unexpected(errno_error(errno, "remount " + target + (read_only ? " read-only" : "")));
  return {};
}

Result<void> verify_bind(const HostRoots& roots, const std::string& target, const MountEntry& source,
                         bool read_only) {
  const auto made = top_layer(roots, target, "new mount");
  if (!made) return tl::unexpected(made.error());
  if (made->device != source.device)
    return fail(Reason::device_mismatch, target + " shows device " + made->device.str() +
                                             " after the bind, not " + source.device.str());
  if (read_only && !made->read_only())
    return fail(Reason::internal, target + " is still writable after the read-only remount");
  return {};
}

Result<void> create_target_file(const std::string& target) {
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(target).parent_path(), ec);
  if (ec) return tl::unexpected(errno_error(ec.value(), "create the directory of " + target));
  const UniqueFd fd(::open(target.c_str(), O_CREAT | O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd) return tl::unexpected(errno_error(errno, "create " + target));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return tl::unexpected(errno_error(errno, "stat " + target));
  if (!S_ISREG(st.st_mode))
    return fail(Reason::target_occupied, target + " exists and is not a regular file; remove it");
  return {};
}

}  // namespace

bool has_mount_option(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const auto comma = options.find(',');
    const auto one = options.substr(0, comma);
    if (one == name || (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '='))
      return true;
    options = comma == std::string_view::npos ? std::string_view() : options.substr(comma + 1);
  }
  return false;
}

bool MountEntry::read_only() const { return has_mount_option(vfs_options, "ro") || superblock_read_only(); }
bool MountEntry::superblock_read_only() const { return has_mount_option(fs_options, "ro"); }

Result<MountTable> MountTable::parse(std::string_view mountinfo) {
  MountTable out;
  if (trim(mountinfo).empty()) return out;
  std::string text(mountinfo);
  const std::unique_ptr<FILE, int (*)(FILE*)> stream(::fmemopen(text.data(), text.size(), "r"), ::fclose);
  const std::unique_ptr<libmnt_table, void (*)(libmnt_table*)> table(mnt_new_table(), mnt_unref_table);
  if (!stream || !table) return fail(Reason::internal, "no memory for the mount table");
  if (const int rc = mnt_table_parse_stream(table.get(), stream.get(), "mountinfo"); rc != 0)
    return fail(Reason::io_error, "mountinfo cannot be parsed (libmount " + std::to_string(rc) + ")");
  const std::unique_ptr<libmnt_iter, void (*)(libmnt_iter*)> it(mnt_new_iter(MNT_ITER_FORWARD),
                                                                mnt_free_iter);
  libmnt_fs* fs = nullptr;
  while (it && mnt_table_next_fs(table.get(), it.get(), &fs) == 0) out.entries_.push_back(entry_of(fs));
  return out;
}

Result<MountTable> MountTable::read(const HostRoots& roots) {
  // The kernel hands mountinfo out in pieces; mounts that change meanwhile can hide another line. Two equal
  // reads in a row are taken for the truth.
  Result<std::string> text = std::string();
  for (int attempt = 0; attempt < k_mountinfo_reads; ++attempt) {
    auto again = read_file(roots.proc + "/self/mountinfo", k_mountinfo_limit);
    if (!again) return tl::unexpected(with_context(again.error(), "mount table"));
    if (attempt > 0 && *again == *text) break;
    text = std::move(again);
  }
  return parse(*text);
}

std::vector<MountEntry> MountTable::layers_at(std::string_view path) const {
  std::vector<MountEntry> out;
  // Later lines are later mounts: the last one at a path is the one that is seen.
  std::copy_if(entries_.rbegin(), entries_.rend(), std::back_inserter(out),
               [&](const MountEntry& entry) { return entry.target == parent_prefix(path); });
  return out;
}

std::vector<MountEntry> MountTable::mounts_of(DeviceNumber device) const {
  std::vector<MountEntry> out;
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(out),
               [&](const MountEntry& entry) { return entry.device == device; });
  return out;
}

std::vector<MountEntry> MountTable::node_binds(std::string_view node_name) const {
  std::vector<MountEntry> out;
  const auto root = "/" + std::string(node_name);
  const auto deleted = root + "//deleted";  // the node is gone, the bind is left
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(out), [&](const MountEntry& entry) {
    return entry.fs_type == "devtmpfs" && (entry.root == root || entry.root == deleted);
  });
  return out;
}

std::optional<MountEntry> MountTable::holding(std::string_view path) const {
  path = parent_prefix(path);
  const MountEntry* best = nullptr;
  for (const auto& entry : entries_) {
    const std::string_view at = entry.target;
    const bool holds = at == "/" || path == at ||
                       (path.starts_with(at) && path.size() > at.size() && path[at.size()] == '/');
    // Of several layers the last line is the one that is seen.
    if (holds && (best == nullptr || at.size() >= best->target.size())) best = &entry;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

std::vector<MountEntry> MountTable::below(std::string_view path) const {
  std::string prefix(parent_prefix(path));
  if (prefix != "/") prefix += '/';
  std::vector<MountEntry> out;
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(out), [&](const MountEntry& entry) {
    return entry.target.size() > prefix.size() && entry.target.starts_with(prefix);
  });
  return out;
}

bool in_namespace_of_init(const HostRoots& roots) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink(roots.proc + "/self/ns/mnt", error);
  if (error) return false;
  const auto first = std::filesystem::read_symlink(roots.proc + "/1/ns/mnt", error);
  return !error && own == first && ::getpid() != 1;
}

Result<void> check_propagation(const MountTable& mounts, const std::string& directory, bool host_namespace) {
  const auto inside = canonical_mount_path(directory + "/pods");
  const auto holder = mounts.holding(inside ? *inside : directory);
  if (!holder) return {};
  if (holder->shared && !holder->slave) return {};
  if (holder->target == "/" && !holder->slave && host_namespace) return {};
  return fail(
      Reason::dependency_missing,
      "mounts below the kubelet directory " + directory + " would not be seen on the host: " +
          holder->target + " is a " + (holder->slave ? "slave" : "private") +
          " mount here; give the container that host path with mountPropagation: Bidirectional, on the "
          "host itself run mount --make-shared " +
          holder->target + ", and keep a systemd unit free of options that give it a mount namespace");
}

Result<std::string> canonical_mount_path(const std::string& path) {
  const auto bad = [&](const char* why) {
    return fail(Reason::invalid_argument, "path '" + path + "' " + why);
  };
  if (path.empty() || path.front() != '/') return bad("is not absolute");
  if (path.find('\0') != std::string::npos || path.find('\n') != std::string::npos)
    return bad("holds a control character");
  const std::filesystem::path given{std::string(parent_prefix(path))};
  for (const auto& part : given)
    if (part == ".." || part == ".") return bad("holds a relative component");
  if (given == "/") return bad("is the root directory");
  std::error_code ec;
  // Also when the last directories do not exist yet: they are made below what the links resolve to.
  const auto parent = std::filesystem::weakly_canonical(given.parent_path(), ec);
  if (ec) return tl::unexpected(errno_error(ec.value(), "directory of " + path));
  return (parent / given.filename()).string();
}

nlohmann::json to_json(const MountRequest& request) {
  return {{"device", request.device},
          {"number", request.number.str()},
          {"target", request.target},
          {"fs_type", request.fs_type},
          {"read_only", request.options.read_only},
          {"attributes", request.options.attributes},
          {"filesystem", request.options.filesystem}};
}

MountRequest mount_request_from(const nlohmann::json& json) {
  MountRequest request;
  request.device = json.at("device").get<std::string>();
  request.number = DeviceNumber::parse(json.at("number").get<std::string>()).value_or(DeviceNumber{});
  request.target = json.at("target").get<std::string>();
  request.fs_type = json.at("fs_type").get<std::string>();
  request.options.read_only = json.at("read_only").get<bool>();
  request.options.attributes = json.at("attributes").get<std::vector<std::string>>();
  request.options.filesystem = json.at("filesystem").get<std::vector<std::pair<std::string, std::string>>>();
  return request;
}

namespace {

/// What the kernel wrote about a filesystem context: lines "e xfs: Superblock has bad magic number".
std::string kernel_words(int context) {
  std::string out;
  std::array<char, 1024> line{};
  for (;;) {
    const auto got = ::read(context, line.data(), line.size());
    if (got <= 0) return out;
    std::string_view text(line.data(), static_cast<std::size_t>(got));
    if (text.size() > 2 && text[1] == ' ') text.remove_prefix(2);
    out += (out.empty() ? "" : "; ") + std::string(trim(text));
  }
}

tl::unexpected<Error> mount_error(int code, int context, const MountRequest& request, std::string_view step) {
  std::string what = "mount " + request.device + " (" + request.fs_type + ") at " + request.target + ", " +
                     std::string(step);
  if (const auto words = kernel_words(context); !words.empty()) what += " (kernel: " + words + ")";
  auto error = errno_error(code, what, Reason::device_missing);
  const auto set = [&](Reason reason, std::string_view remedy) {
    error.reason = reason;
    error.code = info(reason).code;
    error.message += "; " + std::string(remedy);
  };
  if (code == ENXIO || code == ENODEV)
    set(Reason::device_missing, "the device's session has ended; stage again");
  if (code == EUCLEAN || code == EBADMSG || (code == EINVAL && step == "reading the filesystem"))
    set(Reason::filesystem_corrupt, "check the filesystem by hand; nothing was changed");
  if (code == EINVAL && step == "setting an option")
    set(Reason::invalid_argument, "this kernel does not know a mount option of the volume");
  if (code == EROFS)
    error.message += "; its log was not replayed and nothing may be written here: publish it read-write once";
  if (code == EBUSY) set(Reason::device_busy, "the device is in use by something else on this node");
  return tl::unexpected(error);
}

Result<UniqueFd> filesystem_context(const MountRequest& request) {
  UniqueFd context(::fsopen(request.fs_type.c_str(), FSOPEN_CLOEXEC));
  if (!context) {
    const int code = errno;
    if (code == ENODEV)
      return fail(Reason::module_missing, "this kernel does not support " + request.fs_type +
                                              "; load the module or use another filesystem type");
    return tl::unexpected(errno_error(code, "open a filesystem context for " + request.fs_type));
  }
  const auto set = [&](const char* key, const char* value) {
    const auto command = value != nullptr ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
    return ::fsconfig(context.get(), command, key, value, 0) == 0;
  };
  bool ok = set("source", request.device.c_str()) && (!request.options.read_only || set("ro", nullptr));
  for (const auto& [key, value] : request.options.filesystem)
    ok = ok && set(key.c_str(), value.empty() ? nullptr : value.c_str());
  if (!ok) return mount_error(errno, context.get(), request, "setting an option");
  return context;
}

}  // namespace

Result<void> mount_here(const MountRequest& request) {
  // The open descriptor keeps the device's number from being given to another one until the mount is there.
  const auto device = open_block_device(request.device, request.number, O_RDONLY);
  if (!device) return tl::unexpected(device.error());
  const auto context = filesystem_context(request);
  if (!context) return tl::unexpected(context.error());
  if (::fsconfig(context->get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return mount_error(errno, context->get(), request, "reading the filesystem");
  unsigned attributes = request.options.read_only ? MOUNT_ATTR_RDONLY : 0U;
  for (const auto& row : k_attributes)
    if (std::find(request.options.attributes.begin(), request.options.attributes.end(), row.name) !=
        request.options.attributes.end())
      attributes |= row.attr;
  const UniqueFd mount(::fsmount(context->get(), FSMOUNT_CLOEXEC, attributes));
  if (!mount) return mount_error(errno, context->get(), request, "making the mount");
  // Only this last step shows the mount; a helper killed before it leaves nothing behind.
  if (::move_mount(mount.get(), "", AT_FDCWD, request.target.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
    return tl::unexpected(errno_error(errno, "attach the mount to " + request.target, Reason::not_found));
  return {};
}

Result<void> mount_filesystem(const HelperCall& helper, const HostRoots& roots, const MountRequest& request,
                              Deadline deadline) {
  if (auto free = refuse_occupied(roots, request.target); !free) return free;
  if (auto done = helper("mount", to_json(request), deadline); !done) return tl::unexpected(done.error());
  const auto made = top_layer(roots, request.target, "new mount");
  if (!made) return tl::unexpected(made.error());
  if (made->device != request.number)
    return fail(Reason::device_mismatch, request.target + " shows device " + made->device.str() +
                                             " after the mount, not " + request.number.str());
  if (!mounted_as(*made, request.options)) {
    undo_mount(request.target);
    return fail(Reason::internal, request.target + " was mounted with " + made->vfs_options + ";" +
                                      made->fs_options + " instead of " + request.options.str());
  }
  return {};
}

Result<void> bind_mount(const HostRoots& roots, const std::string& source, const std::string& target,
                        bool read_only, const std::vector<std::string>& attributes) {
  const auto from = top_layer(roots, source, "staging path");
  if (!from) return tl::unexpected(from.error());
  if (auto free = refuse_occupied(roots, target); !free) return free;
  if (auto done = bind_call(source, target); !done) return done;
  Result<void> rest;
  if (read_only || !attributes.empty()) rest = restrict_bind(roots, target, read_only, attributes);
  if (rest) rest = verify_bind(roots, target, *from, read_only);
  if (!rest) undo_mount(target);
  return rest;
}

Result<void> bind_device_node(const HostRoots& roots, const std::string& node, DeviceNumber number,
                              const std::string& target) {
  const auto seen = device_number_of_node(node);
  if (!seen) return tl::unexpected(seen.error());
  if (*seen != number)
    return fail(Reason::device_mismatch,
                node + " is device " + seen->str() + " now, not " + number.str() +
                    ": the name was given to another device; stage the volume again");
  if (auto free = refuse_occupied(roots, target); !free) return free;
  if (auto made = create_target_file(target); !made) return made;
  if (auto done = bind_call(node, target); !done) return done;
  const auto bound = device_number_of_node(target);
  if (bound && *bound == number) return {};
  undo_mount(target);
  return fail(Reason::device_mismatch, target + " does not show device " + number.str() + " after the bind");
}

Result<UnmountOutcome> unmount_top(const HelperCall& helper, const HostRoots& roots, const std::string& path,
                                   Deadline deadline) {
  const auto count = [&]() -> Result<std::size_t> {
    const auto table = MountTable::read(roots);
    if (!table) return tl::unexpected(table.error());
    return table->layers_at(path).size();
  };
  const auto before = count();
  if (!before) return tl::unexpected(before.error());
  if (*before == 0) return UnmountOutcome::unmounted;
  const auto answer = helper("umount", {{"path", path}}, deadline);
  const auto after = count();
  if (!after) return tl::unexpected(after.error());
  if (answer) return UnmountOutcome::unmounted;
  const bool late = answer.error().reason == Reason::command_timeout;
  if (*after < *before) return late ? UnmountOutcome::flushing : UnmountOutcome::unmounted;
  return tl::unexpected(with_context(answer.error(), "unmount " + path));
}

Result<UnmountOutcome> unmount_all_layers(const HelperCall& helper, const HostRoots& roots,
                                          const std::string& path, Deadline deadline) {
  auto outcome = UnmountOutcome::unmounted;
  for (;;) {
    const auto table = MountTable::read(roots);
    if (!table) return tl::unexpected(table.error());
    if (table->layers_at(path).empty()) return outcome;
    const auto one = unmount_top(helper, roots, path, deadline);
    if (!one) return one;
    if (*one == UnmountOutcome::flushing) outcome = UnmountOutcome::flushing;
    if (deadline.passed()) {
      const auto now = MountTable::read(roots);
      if (now && now->layers_at(path).empty()) return outcome;
      return fail(Reason::command_timeout,
                  "unmount " + path + ": layers are left at the deadline; try again");
    }
  }
}

}  // namespace pillar::hostio
