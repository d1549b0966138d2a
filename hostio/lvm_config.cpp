#include <set>

#include "hostio/lvm.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

bool is_namespace_name(const std::string& name) {
  // nvme0n1, but not nvme0c1n1: the hidden disk of one path has no node.
  const auto n = name.find('n', 4);
  return name.starts_with("nvme") && n != std::string::npos && name.find_first_not_of("0123456789", 4) == n &&
         name.find_first_not_of("0123456789", n + 1) == std::string::npos && n + 1 < name.size();
}

bool is_controller_name(const std::string& name) {
  return name.starts_with("nvme") && name.size() > 4 &&
         name.find_first_not_of("0123456789", 4) == std::string::npos;
}

void add_namespaces(const std::string& directory, std::set<std::string>& names) {
  for (const std::string& name : list_directory(directory))
    if (is_namespace_name(name)) names.insert(name);
}

// Namespaces behind anything but a local PCIe controller. A subsystem without controllers holds the dead head
// of a session that is gone.
std::set<std::string> initiator_namespaces(const std::string& sysfs) {
  std::set<std::string> names;
  for (const std::string& controller : list_directory(sysfs + "/class/nvme")) {
    const std::string directory = sysfs + "/class/nvme/" + controller;
    if (read_attribute(directory + "/transport").value_or("") != "pcie") add_namespaces(directory, names);
  }
  for (const std::string& subsystem : list_directory(sysfs + "/class/nvme-subsystem")) {
    const std::string directory = sysfs + "/class/nvme-subsystem/" + subsystem;
    bool local = false;
    for (const std::string& child : list_directory(directory))
      local = local || (is_controller_name(child) &&
                        read_attribute(directory + "/" + child + "/transport").value_or("") == "pcie");
    if (!local) add_namespaces(directory, names);
  }
  return names;
}

std::string quoted_list(const std::vector<std::string>& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += (text.empty() ? "\"" : ",\"") + pattern + "\"";
  return "[" + text + "]";
}

}  // namespace

std::string lvm_config(const std::string& sysfs, const std::vector<std::string>& accept_devices,
                       bool udev_running) {
  std::vector<std::string> filter;
  for (const std::string& name : initiator_namespaces(sysfs))
    filter.push_back("r|^/dev/" + name + "(p[0-9]+)?$|");
  for (const std::string& pattern : accept_devices) filter.push_back("a|" + pattern + "|");
  if (!accept_devices.empty()) filter.push_back("r|.*|");

  std::string text = "devices{scan_lvs=0";
  if (!filter.empty()) text += " global_filter=" + quoted_list(filter);
  if (!udev_running) text += " obtain_device_list_from_udev=0";
  text += "} global{notify_dbus=0 use_lvmpolld=0} activation{monitoring=0";
  if (!udev_running) text += " udev_sync=0 udev_rules=0";
  return text + "}";
}

}  // namespace pillar::hostio
