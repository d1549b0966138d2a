#pragma once
// Identifiers and their strict grammars (docs/interfaces.md section 3). A value of one of these types is
// valid by construction; nothing else may reach a path, a command line or configfs.

#include <cstdint>
#include <string>
#include <string_view>

#include "messages/error.hpp"

namespace pillar {

inline constexpr std::string_view k_driver_name = "pillar-csi.bhyoo.com";
inline constexpr std::string_view k_key_prefix = "pillar-csi.bhyoo.com/";
inline constexpr std::string_view k_nqn_prefix = "nqn.2026-01.com.bhyoo.pillar-csi:";

/// A backend object of an agent: `<pool>/<name>`. Pool: `[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}`; name:
/// `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`; neither contains "..".
struct AgentVolumeId {
  std::string pool;
  std::string name;

  /// Parses the text form; INVALID_ARGUMENT naming the text otherwise.
  static Result<AgentVolumeId> parse(std::string_view text);
  std::string str() const { return pool + "/" + name; }
  friend bool operator==(const AgentVolumeId&, const AgentVolumeId&) = default;
  friend auto operator<=>(const AgentVolumeId&, const AgentVolumeId&) = default;
};

/// CSI volume id: `<agent>/<protocolType>/<backendType>/<pool>/<name>`, at most 128 bytes.
struct VolumeId {
  std::string agent;          ///< PillarAgent name, a DNS subdomain
  std::string protocol_type;  ///< nvmeof-tcp
  std::string backend_type;   ///< lvm-lv | zfs-zvol
  AgentVolumeId volume;

  static Result<VolumeId> parse(std::string_view text);
  std::string str() const;
  friend bool operator==(const VolumeId&, const VolumeId&) = default;
};

/// Longest CSI volume id we make.
inline constexpr std::size_t k_max_volume_id = 128;

/// The volume name for the CO's `name`: itself when it matches `[A-Za-z0-9][A-Za-z0-9._-]{0,62}` without ".."
/// and is usable by every backend (LVM reserves "snapshot*", "pvmove*" and the infixes _tmeta, _tdata,
/// _cdata, _cmeta, _mimage, _mlog, _rimage, _rmeta, _corig, _pmspare, _vorigin, _imeta, _iorig, _wcorig),
/// else "v-" + base32(sha256(name)). INVALID_ARGUMENT for an empty name or one with control characters or
/// over 128 bytes... see the definition for the exact limits.
Result<std::string> volume_name_for(std::string_view co_name);

/// The CSI volume id for its parts; replaces the name by its hash when the whole would exceed
/// k_max_volume_id.
Result<VolumeId> make_volume_id(std::string_view agent, std::string_view protocol_type,
                                std::string_view backend_type, std::string_view pool, std::string_view name);

/// What an export is known by, all derived from (cluster id, agent, agent volume id), so that it never
/// changes in the life of a volume and no two volumes of any two clusters share it.
struct ExportIdentity {
  std::string nqn;             ///< <= 223 bytes
  std::string namespace_uuid;  ///< UUIDv5 of the NQN, lower-case dashed
  std::string nguid;           ///< same 16 bytes, dashed as configfs shows it
  std::string serial;          ///< 20 hex digits
};
ExportIdentity export_identity(std::string_view cluster_id, std::string_view agent,
                               const AgentVolumeId& volume);

/// Derives the rest of the identity from an NQN of ours.
ExportIdentity export_identity_of_nqn(std::string_view nqn);

/// True when `nqn` is well formed (NVMe Base spec: <= 223 bytes, starts "nqn.", no blanks or control
/// characters, no '/').
bool is_valid_nqn(std::string_view nqn);
/// True when `nqn` carries this driver's subsystem prefix.
bool is_our_nqn(std::string_view nqn);

/// File-name escape: injective, yields only [A-Za-z0-9._-] and %XX; a result over 200 bytes becomes "h-" +
/// base32(sha256).
std::string escape_file_name(std::string_view text);

/// DNS-1123 subdomain (object names), at most 253 bytes.
bool is_object_name(std::string_view text);

/// RFC 4648 base32, lower case, unpadded, of the SHA-256 of `text` (52 characters).
std::string sha256_base32(std::string_view text);
/// Lower-case hex SHA-256 of `text`.
std::string sha256_hex(std::string_view text);
/// UUIDv5 in the URL namespace, lower-case dashed.
std::string uuid_v5(std::string_view text);
/// Random UUIDv4, lower-case dashed.
std::string uuid_v4();

/// An IP endpoint, normalised. Literal IPv4/IPv6 only (link-local with %scope allowed); brackets accepted on
/// input.
struct IpAddress {
  std::string text;  ///< canonical literal
  bool v6 = false;
  static Result<IpAddress> parse(std::string_view text);
  friend bool operator==(const IpAddress&, const IpAddress&) = default;
};

}  // namespace pillar
