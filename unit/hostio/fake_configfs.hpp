#pragma once
// An nvmet configfs tree in memory that refuses what the kernel refuses (EACCES after the first link, EBUSY
// while enabled, EINVAL for allowed_hosts against allow_any_host, ENOTEMPTY/EBUSY on rmdir, EADDRINUSE,
// blank-padded serial, random default identifiers) and that keeps sessions alive exactly as long as the
// kernel does.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hostio/configfs/configfs_ops.hpp"

namespace pillar::hostio::testing {

class FakeConfigfs : public ConfigfsOps {
 public:
  ErrnoResult<void> make_dir(const std::string& path) override;
  ErrnoResult<void> remove_dir(const std::string& path) override;
  ErrnoResult<std::string> read(const std::string& path) override;
  ErrnoResult<void> write(const std::string& path, const std::string& value) override;
  ErrnoResult<void> link(const std::string& target, const std::string& path) override;
  ErrnoResult<void> unlink(const std::string& path) override;
  ErrnoResult<std::string> link_target(const std::string& path) override;
  ErrnoResult<std::vector<std::string>> list(const std::string& path) override;

  /// A host connects: true when the port listens, the subsystem is linked there and lets the host in. The
  /// session lives until the subsystem is unlinked from that port.
  bool connect(const std::string& host, const std::string& nqn);
  /// The host has a live session and the namespace behind it is enabled: its writes land.
  bool can_write(const std::string& host, const std::string& nqn) const;
  /// After a revoke nothing of `host` may land any more; true when that is so. I/O in flight of a session
  /// that was cut ends only through enable=0.
  bool access_ended(const std::string& host, const std::string& nqn) const;

  /// The tree as text, for comparison. Host entries show through the links to them: one that nobody links is
  /// inert, and the kernel does not tell whose it is.
  std::string dump() const;
  /// All state is lost, as after a reboot; devices stay.
  void reboot();

  bool loaded = true;             ///< false: no nvmet directory
  std::set<std::string> devices;  ///< existing block devices
  std::set<std::string> addresses = {"10.0.0.5", "fd00::1", "127.0.0.1"};
  std::set<std::string> taken;                             ///< "address:port" used by other programs
  std::map<std::string, int> fail_once;                    ///< "op path" -> errno of the next such call
  std::function<void(const std::string& op_path)> before;  ///< called before each changing operation
  std::vector<std::string> log;                            ///< changing operations, "op path[=value]"
  std::size_t reads = 0;

 private:
  struct Namespace {
    std::string device_path = "(null)";
    std::string uuid;
    std::string nguid;
    bool enabled = false;
  };
  struct Subsystem {
    bool any_host = false;
    std::string serial;
    std::string model = "Linux";
    bool connected_once = false;
    std::map<std::string, std::string> hosts;
    std::map<std::string, Namespace> namespaces;
    std::set<std::string> in_flight;  ///< hosts whose cut sessions may still have I/O under way
  };
  struct Port {
    std::map<std::string, std::string> attributes;
    std::map<std::string, std::string> links;  ///< name -> NQN
  };
  struct Session {
    std::string host, nqn, port;
    friend auto operator<=>(const Session&, const Session&) = default;
  };
  using Parts = std::vector<std::string>;

  int injected(const std::string& op, const std::string& path, const std::string& value = {});
  bool linked(const std::string& nqn) const;
  int write_subsystem(Subsystem& s, const std::string& attribute, const std::string& value);
  int write_namespace(const std::string& nqn, Namespace& ns, const std::string& attribute,
                      const std::string& value);
  int enable(const std::string& nqn, Namespace& ns, bool on);
  int write_port(Port& port, const std::string& attribute, const std::string& value);
  int link_host(Subsystem& s, const std::string& target, const std::string& name);
  int link_port(Port& port, const std::string& target, const std::string& name);
  int check_listen(const Port& port) const;
  std::string random_uuid();

  std::set<std::string> hosts_;
  std::map<std::string, Subsystem> subsystems_;
  std::map<std::string, Port> ports_;
  std::set<Session> sessions_;
  unsigned counter_ = 0;
};

}  // namespace pillar::hostio::testing
