#include "hostio/lvm.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "hostio/mounts.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr std::string_view k_uid_tag = "pillar-csi.uid=";
constexpr const char* k_wiped_tag = "pillar-csi.wiped=1";
constexpr const char* k_fields =
    "vg_name,lv_name,vg_uuid,lv_uuid,lv_size,lv_attr,lv_tags,lv_kernel_major,lv_kernel_minor";

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::optional<std::uint64_t> number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// Exit codes of LVM are 5 for nearly everything; what happened is in the words (LC_ALL=C).
Reason reason_of(const std::string& words) {
  struct Row {
    std::string_view words;
    Reason reason;
  };
  static constexpr Row k_rows[] = {
      {"already exists in volume group", Reason::already_exists},
      {"Failed to find logical volume", Reason::not_found},
      {"not found in volume group", Reason::not_found},
      {"Cannot process volume group", Reason::pool_missing},
      {"nsufficient free space", Reason::no_space},
      {"nsufficient suitable allocatable extents", Reason::no_space},
      {"contains a filesystem in use", Reason::device_busy},
      {"is used by another device", Reason::device_busy},
      {" in use", Reason::device_busy},
  };
  for (const Row& row : k_rows)
    if (contains(words, row.words)) return row.reason;
  if (contains(words, "Volume group") && contains(words, "not found")) return Reason::pool_missing;
  return Reason::command_failed;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return std::string(trim(text)).substr(0, 600);
}

tl::unexpected<Error> lvm_failure(const Command& command, const CommandResult& result) {
  const std::string words = one_line(result.err.empty() ? result.out : result.err);
  const Reason reason = reason_of(words);
  std::string message = command.program + " " + command.args.back() + " failed with exit code " +
                        std::to_string(result.exit_code) + ": " + words;
  if (reason == Reason::pool_missing) message += "; check that its disks are attached (vgs, pvs)";
  return fail(reason, std::move(message),
              {{"program", command.program}, {"exit_code", std::to_string(result.exit_code)}});
}

// The rows of `section` in a `--reportformat json` document, each as name -> text.
Result<std::vector<std::map<std::string, std::string>>> parse_report(const std::string& text,
                                                                     const std::string& section) {
  std::vector<std::map<std::string, std::string>> rows;
  try {
    const json document = json::parse(text);
    for (const json& report : document.at("report"))
      for (const json& row : report.at(section))
        rows.push_back(row.get<std::map<std::string, std::string>>());
  } catch (const json::exception& e) {
    return fail(Reason::internal, "unexpected LVM report: " + std::string(e.what()));
  }
  return rows;
}

Result<void> check_names(const AgentVolumeId& id) {
  if (const auto parsed = AgentVolumeId::parse(id.str()); !parsed) return tl::unexpected(parsed.error());
  return {};
}

Result<void> check_uid(const std::string& uid) {
  const bool plain = std::all_of(uid.begin(), uid.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (uid.empty() || uid.size() > 128 || !plain)
    return fail(Reason::invalid_argument, "not a volume uid: " + uid);
  return {};
}

Result<void> check_range(SizeRange range) {
  if (range.limit != 0 && range.limit < range.required)
    return fail(Reason::out_of_range, "limit " + std::to_string(range.limit) + " is below the required " +
                                          std::to_string(range.required) + " bytes");
  return {};
}

std::string space_of(const VolumeGroup& vg) {
  return "volume group " + vg.name + " has " + std::to_string(vg.free_bytes) + " bytes free of " +
         std::to_string(vg.size_bytes);
}

Result<void> check_free(const VolumeGroup& vg, std::uint64_t more) {
  if (more <= vg.free_bytes) return {};
  return fail(Reason::no_space, std::to_string(more) + " bytes more do not fit: " + space_of(vg) +
                                    "; extend the volume group or delete volumes");
}

// The caller of an expansion lowers its wish after OUT_OF_RANGE. For a new volume another pool may be chosen,
// which is what RESOURCE_EXHAUSTED says: create does not ask this.
Result<void> check_feasible(const VolumeGroup& vg, std::uint64_t total) {
  if (total <= vg.size_bytes) return {};
  return fail(Reason::out_of_range, std::to_string(total) + " bytes can never fit: " + space_of(vg));
}

std::string bytes_argument(std::uint64_t bytes) { return std::to_string(bytes) + "b"; }

}  // namespace

struct Lvm::Row {
  AgentVolumeId id;
  std::string vg_uuid;
  std::string lv_uuid;
  std::uint64_t size = 0;
  std::string attr;  ///< lv_attr, at least 10 characters: see lvs(8)
  std::vector<std::string> tags;
  DeviceNumber number;

  std::string uid() const {
    for (const std::string& tag : tags)
      if (tag.starts_with(k_uid_tag)) return tag.substr(k_uid_tag.size());
    return {};
  }
  bool wiped() const { return std::find(tags.begin(), tags.end(), k_wiped_tag) != tags.end(); }
  bool active() const { return attr[4] == 'a' || suspended(); }
  bool suspended() const { return attr[4] == 's'; }
  bool is_origin() const { return attr[0] == 'o' || attr[0] == 'O'; }

  static Result<Row> from(const std::map<std::string, std::string>& fields) {
    Row row;
    try {
      row.id = {fields.at("vg_name"), fields.at("lv_name")};
      row.vg_uuid = fields.at("vg_uuid");
      row.lv_uuid = fields.at("lv_uuid");
      row.attr = fields.at("lv_attr");
      row.tags = split(fields.at("lv_tags"), ',');
      const auto size = number_of(fields.at("lv_size"));
      if (!size || row.attr.size() < 10)
        return fail(Reason::internal, "unexpected LVM report of " + row.id.str());
      row.size = *size;
      // -1 while inactive.
      row.number = {static_cast<unsigned>(number_of(fields.at("lv_kernel_major")).value_or(0)),
                    static_cast<unsigned>(number_of(fields.at("lv_kernel_minor")).value_or(0))};
    } catch (const std::out_of_range&) {
      return fail(Reason::internal, "LVM report lacks a column");
    }
    return row;
  }

 private:
  static std::optional<std::uint64_t> number_of(const std::string& text) { return hostio::number(text); }
};

Result<std::uint64_t> round_to_extents(SizeRange range, std::uint64_t extent_bytes) {
  if (auto r = check_range(range); !r) return tl::unexpected(r.error());
  if (extent_bytes == 0) return fail(Reason::internal, "extent size 0");
  const std::uint64_t wanted = std::max<std::uint64_t>(range.required, 1);
  const std::uint64_t extents = (wanted - 1) / extent_bytes + 1;
  // CSI sizes are signed 64 bit.
  constexpr std::uint64_t k_max = std::numeric_limits<std::int64_t>::max();
  if (extents > k_max / extent_bytes)
    return fail(Reason::out_of_range, std::to_string(range.required) + " bytes can never be allocated");
  const std::uint64_t rounded = extents * extent_bytes;
  if (range.limit != 0 && rounded > range.limit)
    return fail(Reason::out_of_range, std::to_string(range.required) + " bytes rounded up to extents of " +
                                          std::to_string(extent_bytes) + " are " + std::to_string(rounded) +
                                          " bytes, above the limit of " + std::to_string(range.limit));
  return rounded;
}

std::string dm_name(const AgentVolumeId& id) {
  const auto doubled = [](const std::string& part) {
    std::string result;
    for (const char c : part) result += c == '-' ? "--" : std::string(1, c);
    return result;
  };
  return doubled(id.pool) + "-" + doubled(id.name);
}

Lvm::Lvm(CommandRunner& runner, DeviceWiper& wiper) : Lvm(runner, wiper, Options{}) {}
Lvm::Lvm(CommandRunner& runner, DeviceWiper& wiper, Options options)
    : runner_(runner), wiper_(wiper), options_(std::move(options)) {}

bool Lvm::udev_running() const { return ::access(options_.udev_control.c_str(), F_OK) == 0; }

// --- commands and reports ---------------------------------------------------------------------------------

Command Lvm::command(const std::string& program, std::vector<std::string> args, Deadline deadline) const {
  const bool udev = udev_running();
  Command result{
      program, {"--config", lvm_config(options_.roots.sys, options_.accept_devices, udev)}, deadline};
  result.output_limit = std::size_t{64} * 1024 * 1024;  // a pool may hold many thousand volumes
  result.env = {"LVM_SUPPRESS_FD_WARNINGS=1"};
  if (!udev) result.env.emplace_back("DM_DISABLE_UDEV=1");
  result.args.insert(result.args.end(), std::make_move_iterator(args.begin()),
                     std::make_move_iterator(args.end()));
  return result;
}

Result<CommandResult> Lvm::run(const Command& command) {
  Result<CommandResult> result = runner_.run(command);
  if (result && result->exit_code != 0) return lvm_failure(command, *result);
  return result;
}

Result<std::vector<Lvm::Row>> Lvm::report(std::vector<std::string> target, Deadline deadline) {
  std::vector<std::string> args{"--reportformat", "json", "--units", "b", "--nosuffix", "-o", k_fields};
  args.insert(args.end(), target.begin(), target.end());
  const auto result = run(command("lvs", std::move(args), deadline));
  if (!result) return tl::unexpected(result.error());
  const auto fields = parse_report(result->out, "lv");
  if (!fields) return tl::unexpected(fields.error());
  std::vector<Row> rows;
  for (const auto& f : *fields) {
    Result<Row> row = Row::from(f);
    if (!row) return tl::unexpected(row.error());
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<VolumeGroup> Lvm::pool_info(const std::string& vg, Deadline deadline) {
  if (auto r = check_names({vg, "x"}); !r) return tl::unexpected(r.error());
  const auto result = run(command("vgs",
                                  {"--reportformat", "json", "--units", "b", "--nosuffix", "-o",
                                   "vg_name,vg_size,vg_free,vg_extent_size", vg},
                                  deadline));
  if (!result) return tl::unexpected(result.error());
  const auto rows = parse_report(result->out, "vg");
  if (!rows) return tl::unexpected(rows.error());
  const auto field = [&](const char* name) -> std::optional<std::uint64_t> {
    if (rows->size() != 1 || !rows->front().contains(name)) return std::nullopt;
    return number(rows->front().at(name));
  };
  const auto size = field("vg_size");
  const auto free = field("vg_free");
  const auto extent = field("vg_extent_size");
  if (!size || !free || !extent || *extent == 0)
    return fail(Reason::internal, "unexpected LVM report of volume group " + vg);
  return VolumeGroup{vg, *size, *free, *extent};
}

Result<std::optional<Lvm::Row>> Lvm::find_row(const AgentVolumeId& id, Deadline deadline) {
  if (auto r = check_names(id); !r) return tl::unexpected(r.error());
  auto rows = report({id.str()}, deadline);
  if (!rows && rows.error().reason == Reason::not_found) return std::nullopt;
  if (!rows) return tl::unexpected(rows.error());
  for (Row& row : *rows)
    if (row.id == id) return std::move(row);
  return fail(Reason::internal, "LVM reported another volume than " + id.str());
}

Result<std::optional<Lvm::Row>> Lvm::find_owned(const AgentVolumeId& id, const std::string& uid,
                                                Deadline deadline) {
  if (auto r = check_uid(uid); !r) return tl::unexpected(r.error());
  auto row = find_row(id, deadline);
  if (!row || !*row || (*row)->uid() == uid) return row;
  const std::string owner = (*row)->uid().empty() ? "has no ownership tag of this driver"
                                                  : "belongs to volume uid " + (*row)->uid();
  return fail(Reason::not_owned,
              "logical volume " + id.str() + " " + owner + ", not to " + uid +
                  "; it is not touched: rename or remove it by hand if it is not needed",
              {{"volume", id.str()}, {"owner", (*row)->uid()}});
}

Result<Lvm::Row> Lvm::require_owned(const AgentVolumeId& id, const std::string& uid, Deadline deadline) {
  auto row = find_owned(id, uid, deadline);
  if (!row) return tl::unexpected(row.error());
  if (!*row) return fail(Reason::not_found, "logical volume " + id.str() + " does not exist");
  return std::move(**row);
}

LogicalVolume Lvm::volume_of(const Row& row) const {
  return {row.id,      row.uid(),    row.size,
          row.wiped(), row.active(), options_.roots.dev + "/" + row.id.pool + "/" + row.id.name};
}

Result<std::optional<LogicalVolume>> Lvm::find(const AgentVolumeId& id, Deadline deadline) {
  const auto row = find_row(id, deadline);
  if (!row) return tl::unexpected(row.error());
  if (!*row) return std::nullopt;
  if ((*row)->uid().empty())
    return fail(Reason::not_owned, "logical volume " + id.str() + " has no ownership tag of this driver",
                {{"volume", id.str()}});
  return volume_of(**row);
}

Result<std::vector<LogicalVolume>> Lvm::list(const std::string& vg, Deadline deadline) {
  if (auto r = check_names({vg, "x"}); !r) return tl::unexpected(r.error());
  const auto rows = report({vg}, deadline);
  if (!rows) return tl::unexpected(rows.error());
  std::vector<LogicalVolume> volumes;
  for (const Row& row : *rows)
    if (!row.uid().empty()) volumes.push_back(volume_of(row));
  return volumes;
}

// --- create -----------------------------------------------------------------------------------------------

Result<Lvm::Row> Lvm::make_lv(const AgentVolumeId& id, const std::string& uid, SizeRange range,
                              Deadline deadline) {
  const auto vg = pool_info(id.pool, deadline);
  if (!vg) return tl::unexpected(vg.error());
  const auto size = round_to_extents(range, vg->extent_bytes);
  if (!size) return tl::unexpected(size.error());
  if (auto r = check_free(*vg, *size); !r) return tl::unexpected(r.error());
  const auto made =
      run(command("lvcreate",
                  {"--yes", "--type", "linear", "--zero", "y", "--wipesignatures", "y", "--addtag",
                   std::string(k_uid_tag) + uid, "--size", bytes_argument(*size), "--name", id.name, id.pool},
                  deadline));
  // Made in the meantime: whose it is decides the look-up below.
  if (!made && made.error().reason != Reason::already_exists) return tl::unexpected(made.error());
  return require_owned(id, uid, deadline);
}

// Wipes what identified former content and marks the volume as complete.
Result<Lvm::Row> Lvm::finish(const Row& row, Deadline deadline) {
  const auto device = activate_row(row, deadline);
  if (!device) return tl::unexpected(device.error());
  if (auto r = wiper_.zero_ends(*device); !r) return tl::unexpected(r.error());
  const auto tagged = run(command("lvchange", {"--addtag", k_wiped_tag, row.id.str()}, deadline));
  if (!tagged) return tl::unexpected(tagged.error());
  return require_owned(row.id, row.uid(), deadline);
}

Result<LogicalVolume> Lvm::create(const AgentVolumeId& id, const std::string& uid, SizeRange range,
                                  Deadline deadline) {
  if (auto r = check_range(range); !r) return tl::unexpected(r.error());
  const auto existing = find_owned(id, uid, deadline);
  if (!existing) return tl::unexpected(existing.error());
  Result<Row> row = *existing ? Result<Row>(**existing) : make_lv(id, uid, range, deadline);
  if (!row) return tl::unexpected(row.error());
  if (row->size < range.required || (range.limit != 0 && row->size > range.limit))
    return fail(Reason::already_exists,
                "logical volume " + id.str() + " exists with " + std::to_string(row->size) +
                    " bytes, which does not fit the request for " + std::to_string(range.required) +
                    " bytes (limit " + std::to_string(range.limit) + ")");
  if (!row->wiped()) row = finish(*row, deadline);
  if (!row) return tl::unexpected(row.error());
  return volume_of(*row);
}

// --- change -----------------------------------------------------------------------------------------------

// A command that was killed between suspend and resume leaves the device suspended: its I/O hangs until then.
Result<Lvm::Row> Lvm::resume(const Row& row, Deadline deadline) {
  if (!row.suspended()) return row;
  const auto refreshed = run(command("lvchange", {"--refresh", row.id.str()}, deadline));
  if (!refreshed) return tl::unexpected(refreshed.error());
  return require_owned(row.id, row.uid(), deadline);
}

Result<LogicalVolume> Lvm::extend(const AgentVolumeId& id, const std::string& uid, SizeRange range,
                                  Deadline deadline) {
  if (auto r = check_range(range); !r) return tl::unexpected(r.error());
  auto found = require_owned(id, uid, deadline);
  if (!found) return tl::unexpected(found.error());
  const auto row = resume(*found, deadline);
  if (!row) return tl::unexpected(row.error());
  if (range.limit != 0 && row->size > range.limit)
    return fail(Reason::out_of_range, "logical volume " + id.str() + " already has " +
                                          std::to_string(row->size) + " bytes, above the limit of " +
                                          std::to_string(range.limit) + "; volumes never shrink");
  if (range.required <= row->size) return volume_of(*row);
  const auto vg = pool_info(id.pool, deadline);
  if (!vg) return tl::unexpected(vg.error());
  const auto size = round_to_extents(range, vg->extent_bytes);
  if (!size) return tl::unexpected(size.error());
  if (auto r = check_feasible(*vg, *size); !r) return tl::unexpected(r.error());
  if (auto r = check_free(*vg, *size - row->size); !r) return tl::unexpected(r.error());
  const auto extended =
      run(command("lvextend", {"--yes", "--size", bytes_argument(*size), id.str()}, deadline));
  if (!extended) {
    // "matches existing size", "not larger": somebody was faster.
    const bool reached = contains(extended.error().message, "matches existing size") ||
                         contains(extended.error().message, "not larger");
    if (!reached) return tl::unexpected(extended.error());
  }
  const auto now = require_owned(id, uid, deadline);
  if (!now) return tl::unexpected(now.error());
  if (now->size < range.required)
    return fail(Reason::command_failed, "logical volume " + id.str() + " has " + std::to_string(now->size) +
                                            " bytes after lvextend to " + std::to_string(*size));
  return volume_of(*now);
}

Result<void> Lvm::change_owner(const AgentVolumeId& id, const std::string& old_uid,
                               const std::string& new_uid, Deadline deadline) {
  for (const std::string& uid : {old_uid, new_uid})
    if (auto r = check_uid(uid); !r) return r;
  const auto row = find_row(id, deadline);
  if (!row) return tl::unexpected(row.error());
  if (*row && (*row)->uid() == new_uid) return {};
  const auto owned = require_owned(id, old_uid, deadline);
  if (!owned) return tl::unexpected(owned.error());
  const auto changed = run(command(
      "lvchange",
      {"--deltag", std::string(k_uid_tag) + old_uid, "--addtag", std::string(k_uid_tag) + new_uid, id.str()},
      deadline));
  if (!changed) return tl::unexpected(changed.error());
  return {};
}

// --- remove -----------------------------------------------------------------------------------------------

// lvremove takes the snapshots of an origin along without a word.
Result<void> Lvm::refuse_dependents(const Row& row, Deadline deadline) {
  if (!row.is_origin()) return {};
  const auto snapshots = report({"--select", "origin=" + row.id.name, row.id.pool}, deadline);
  if (!snapshots) return tl::unexpected(snapshots.error());
  std::vector<std::string> names;
  for (const Row& snapshot : *snapshots) names.push_back(snapshot.id.str());
  return fail(Reason::deletion_blocked,
              "logical volume " + row.id.str() + " has snapshots: " + joined(names) + "; remove them first",
              {{"dependents", joined(names)}});
}

Result<void> Lvm::refuse_users(const Row& row) const {
  if (!row.active()) return {};
  std::vector<std::string> users;
  const std::string device = options_.roots.sys + "/dev/block/" + row.number.str();
  for (const std::string& holder : list_directory(device + "/holders")) {
    const auto name = read_attribute(device + "/holders/" + holder + "/dm/name");
    users.push_back("device " + holder + (name ? " (" + *name + ")" : ""));
  }
  const auto mounts = MountTable::read(options_.roots);
  if (!mounts) return tl::unexpected(mounts.error());
  for (const MountEntry& mount : mounts->mounts_of(row.number)) users.push_back("mount " + mount.target);
  if (users.empty()) return {};
  return fail(Reason::device_busy,
              "logical volume " + row.id.str() + " is in use on this host by " + joined(users) +
                  "; release it there (a guest's volume group: vgchange -an) and repeat",
              {{"holders", joined(users)}});
}

Result<void> Lvm::remove(const AgentVolumeId& id, const std::string& uid, Deadline deadline) {
  const auto row = find_owned(id, uid, deadline);
  if (!row) return tl::unexpected(row.error());
  if (!*row) return {};
  if (auto r = refuse_dependents(**row, deadline); !r) return r;
  if (auto r = refuse_users(**row); !r) return r;
  // By its uuid and not only by its name: until LVM's own lock is taken another volume may have come to have
  // the name, when a command of an agent that was killed is still at work.
  const std::string this_one = "lv_uuid=\"" + (*row)->lv_uuid + "\"";
  const auto removed = run(command("lvremove", {"--yes", "--select", this_one, id.str()}, deadline));
  if (!removed && removed.error().reason != Reason::not_found) return tl::unexpected(removed.error());
  const auto now = find_row(id, deadline);
  if (!now) return tl::unexpected(now.error());
  if (*now && (*now)->lv_uuid == (*row)->lv_uuid)
    return fail(Reason::command_failed,
                "logical volume " + id.str() + " is still there after lvremove; look at its volume group");
  return {};
}

// --- activation -------------------------------------------------------------------------------------------

Result<LvDevice> Lvm::activate(const AgentVolumeId& id, const std::string& uid, Deadline deadline) {
  auto row = require_owned(id, uid, deadline);
  if (!row) return tl::unexpected(row.error());
  if (!row->wiped())
    return fail(Reason::device_missing,
                "creation of logical volume " + id.str() + " is not finished; repeat CreateVolume");
  return activate_row(std::move(*row), deadline);
}

Result<LvDevice> Lvm::activate_row(Row row, Deadline deadline) {
  if (!row.active()) {
    const auto activated =
        run(command("lvchange", {"--activate", "y", "--ignoreactivationskip", row.id.str()}, deadline));
    if (!activated) return tl::unexpected(activated.error());
    auto now = require_owned(row.id, row.uid(), deadline);
    if (!now) return tl::unexpected(now.error());
    row = std::move(*now);
  }
  auto resumed = resume(row, deadline);
  if (!resumed) return tl::unexpected(resumed.error());
  return wait_for_node(*resumed, deadline);
}

Result<LvDevice> Lvm::wait_for_node(const Row& row, Deadline deadline) {
  const Deadline until = deadline.earlier(Deadline::after(options_.node_wait));
  Result<LvDevice> device = verified_device(row);
  if (!device) {
    const auto made = run(command("vgmknodes", {row.id.str()}, deadline));
    if (!made) return tl::unexpected(made.error());
    device = verified_device(row);
  }
  while (!device && device.error().reason == Reason::device_missing && !until.passed()) {
    std::this_thread::sleep_for(50ms);
    device = verified_device(row);
  }
  return device;
}

// The kernel's device-mapper uuid says which LV a device number is; a name in /dev alone says nothing.
Result<LvDevice> Lvm::verified_device(const Row& row) const {
  std::string uuid = "LVM-" + row.vg_uuid + row.lv_uuid;
  std::erase(uuid, '-');
  uuid.insert(3, "-");
  const std::string sysfs = options_.roots.sys + "/dev/block/" + row.number.str();
  const auto seen = read_attribute(sysfs + "/dm/uuid");
  if (!seen)
    return fail(Reason::device_missing,
                "logical volume " + row.id.str() + " has no active device " + row.number.str());
  if (*seen != uuid)
    return fail(Reason::device_mismatch,
                "device " + row.number.str() + " is " + *seen + ", expected " + uuid + " of " + row.id.str());
  std::string problem;
  for (const std::string& path : {options_.roots.dev + "/" + row.id.pool + "/" + row.id.name,
                                  options_.roots.dev + "/mapper/" + dm_name(row.id)}) {
    const Result<DeviceNumber> node = options_.node_number(path);
    if (node && *node == row.number) return LvDevice{path, row.number, row.size};
    problem += (problem.empty() ? "" : ", ") + (node ? path + " is " + node->str() : node.error().message);
  }
  return fail(Reason::device_missing, "no device node for logical volume " + row.id.str() + " (" +
                                          row.number.str() + "): " + problem);
}

}  // namespace pillar::hostio
