#include "fake_lvm.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace pillar::hostio::testing {
namespace {

using nlohmann::json;

constexpr const char* k_vg_uuid = "VgUuid-aaaa-bbbb-cccc-dddd-eeee-ffffff";

std::string lv_uuid(unsigned minor) {
  return "LvUuid-aaaa-bbbb-cccc-dddd-eeee-00" + std::to_string(1000 + minor);
}

std::string undashed(std::string text) {
  std::erase(text, '-');
  return text;
}

std::string value_of(const std::vector<std::string>& args, const std::string& option) {
  const auto it = std::find(args.begin(), args.end(), option);
  return it == args.end() || it + 1 == args.end() ? "" : *(it + 1);
}

bool has(const std::vector<std::string>& args, const std::string& option) {
  return std::find(args.begin(), args.end(), option) != args.end();
}

CommandResult failure(const std::string& words) { return {5, "", "  " + words + "\n"}; }

}  // namespace

FakeLvm::FakeLvm() {
  root.put("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
  std::filesystem::create_directories(root / "sys/dev/block");
}

Lvm::Options FakeLvm::options() {
  Lvm::Options options;
  options.roots = HostRoots{root / "sys", "/dev", root / "proc"};
  options.node_wait = std::chrono::milliseconds(100);
  options.udev_control = "/nonexistent";
  options.node_number = [this](const std::string& path) -> Result<DeviceNumber> {
    for (const auto& [name, volume] : volumes)
      if (nodes && volume.active && path == "/dev/" + vg + "/" + name) return DeviceNumber{253, volume.minor};
    return fail(Reason::device_missing, "device node " + path + ": No such file or directory");
  };
  return options;
}

std::uint64_t FakeLvm::free_bytes() const {
  std::uint64_t used = 0;
  for (const auto& [name, volume] : volumes) used += volume.size;
  return size - used;
}

void FakeLvm::publish(const std::string& name, const Volume& volume) const {
  const std::string directory = "sys/dev/block/253:" + std::to_string(volume.minor);
  root.put(directory + "/dm/uuid", "LVM-" + undashed(k_vg_uuid) + undashed(lv_uuid(volume.minor)) + "\n");
  root.put(directory + "/dm/name", vg + "-" + name + "\n");
}

void FakeLvm::add(const std::string& name, Volume volume) {
  volume.minor = next_minor_++;
  if (volume.active) publish(name, volume);
  volumes[name] = std::move(volume);
}

FakeLvm::Volume* FakeLvm::find(const std::string& full_name) {
  const auto it = volumes.find(full_name.substr(full_name.find('/') + 1));
  return it == volumes.end() ? nullptr : &it->second;
}

Result<CommandResult> FakeLvm::run(const Command& command) {
  if (before)
    if (auto r = before(command.program); !r) return tl::unexpected(r.error());
  std::vector<std::string> args = command.args;
  last_env = command.env;
  if (args.size() >= 2 && args[0] == "--config") {
    last_config = args[1];
    args.erase(args.begin(), args.begin() + 2);
  }
  std::string line = command.program;
  for (const std::string& arg : args) line += " " + arg;
  log.push_back(line);
  if (const auto it = fail_once.find(command.program); it != fail_once.end()) {
    CommandResult result = it->second;
    fail_once.erase(it);
    return result;
  }
  if (!vg_present)
    return failure("Volume group \"" + vg + "\" not found\n  Cannot process volume group " + vg);
  if (command.program == "lvs") return lvs(args);
  if (command.program == "vgs") return vgs();
  if (command.program == "lvcreate") return create(args);
  if (command.program == "lvextend") return extend(args);
  if (command.program == "lvchange") return change(args);
  if (command.program == "lvremove") return remove(args);
  if (command.program == "vgmknodes") {
    nodes = nodes || nodes_after_mknodes != 0;
    return CommandResult{};
  }
  return fail(Reason::tool_missing, command.program + " not found");
}

CommandResult FakeLvm::lvs(const std::vector<std::string>& args) const {
  const std::string& target = args.back();
  const std::string select = value_of(args, "--select");
  json rows = json::array();
  for (const auto& [name, volume] : volumes) {
    if (target != vg && target != vg + "/" + name) continue;
    if (!select.empty() && select != "origin=" + volume.origin) continue;
    std::string tags;
    for (const std::string& tag : volume.tags) tags += (tags.empty() ? "" : ",") + tag;
    const std::string attr = std::string(1, volume.kind) + "wi-" +
                             (volume.suspended ? "s" : (volume.active ? "a" : "-")) + "-----";
    rows.push_back({{"vg_name", vg},
                    {"lv_name", name},
                    {"vg_uuid", k_vg_uuid},
                    {"lv_uuid", lv_uuid(volume.minor)},
                    {"lv_size", std::to_string(volume.size)},
                    {"lv_attr", attr},
                    {"lv_tags", tags},
                    {"lv_kernel_major", volume.active ? "253" : "-1"},
                    {"lv_kernel_minor", volume.active ? std::to_string(volume.minor) : "-1"}});
  }
  if (rows.empty() && target != vg) return failure("Failed to find logical volume \"" + target + "\"");
  return {0, json{{"report", json::array({json{{"lv", rows}}})}}.dump(), ""};
}

CommandResult FakeLvm::vgs() const {
  const json row{{"vg_name", vg},
                 {"vg_size", std::to_string(size)},
                 {"vg_free", std::to_string(free_bytes())},
                 {"vg_extent_size", std::to_string(extent)}};
  return {0, json{{"report", json::array({json{{"vg", json::array({row})}}})}}.dump(), ""};
}

CommandResult FakeLvm::create(const std::vector<std::string>& args) {
  const std::string name = value_of(args, "--name");
  if (volumes.contains(name))
    return failure("Logical Volume \"" + name + "\" already exists in volume group \"" + vg + "\"");
  const std::uint64_t bytes = std::stoull(value_of(args, "--size"));
  if (bytes > free_bytes())
    return failure("Volume group \"" + vg + "\" has insufficient free space (1 extents): 2 required.");
  Volume volume;
  volume.size = bytes;
  volume.tags = {value_of(args, "--addtag")};
  add(name, volume);
  return {};
}

CommandResult FakeLvm::extend(const std::vector<std::string>& args) {
  Volume* volume = find(args.back());
  const std::uint64_t bytes = std::stoull(value_of(args, "--size"));
  if (bytes == volume->size) return failure("New size (2 extents) matches existing size (2 extents).");
  if (bytes < volume->size)
    return failure("New size given (1 extents) not larger than existing size (2 extents)");
  if (bytes - volume->size > free_bytes())
    return failure("Insufficient free space: 2 extents needed, but only 1 available");
  volume->size = bytes;
  return {};
}

CommandResult FakeLvm::change(const std::vector<std::string>& args) {
  Volume* volume = find(args.back());
  if (volume == nullptr) return failure("Failed to find logical volume \"" + args.back() + "\"");
  volume->tags.erase(value_of(args, "--deltag"));
  if (has(args, "--addtag")) volume->tags.insert(value_of(args, "--addtag"));
  if (has(args, "--refresh")) volume->suspended = false;
  if (value_of(args, "--activate") == "y" && (volume->kind != 'k' || has(args, "--ignoreactivationskip"))) {
    volume->active = true;
    publish(args.back().substr(vg.size() + 1), *volume);
  }
  return {};
}

CommandResult FakeLvm::remove(const std::vector<std::string>& args) {
  const Volume* volume = find(args.back());
  if (volume == nullptr) return failure("Failed to find logical volume \"" + args.back() + "\"");
  const std::string select = value_of(args, "--select");
  if (!select.empty() && select != "lv_uuid=\"" + lv_uuid(volume->minor) + "\"") return {};
  volumes.erase(args.back().substr(vg.size() + 1));
  return {};
}

Result<void> FakeLvm::zero_ends(const LvDevice& device) {
  if (before)
    if (auto r = before("wipe"); !r) return r;
  log.push_back("wipe " + device.path);
  for (auto& [name, volume] : volumes)
    if (volume.minor == device.number.minor) volume.wiped_content = true;
  return {};
}

}  // namespace pillar::hostio::testing
