#include "messages/ids.hpp"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <uuid/uuid.h>

#include <algorithm>
#include <array>
#include <vector>

namespace pillar {
namespace {

constexpr std::size_t k_max_name = 63;
constexpr std::size_t k_max_co_name = 1024;
constexpr std::size_t k_max_file_name = 200;
constexpr std::size_t k_max_nqn = 223;  // NVMe Base specification, NQN size

bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool matches(std::string_view text, std::string_view extra) {
  if (text.empty() || text.size() > k_max_name || !is_alnum(text.front())) return false;
  if (text.find("..") != std::string_view::npos) return false;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_alnum(c) || extra.find(c) != std::string_view::npos; });
}

bool is_pool(std::string_view text) { return matches(text, "_.+-"); }
bool is_volume_name(std::string_view text) { return matches(text, "._-"); }

// lvm2 lib/misc/lvm-string.c: names that lvcreate refuses or that LVM gives to hidden volumes.
bool is_reserved_by_lvm(std::string_view name) {
  constexpr std::array prefixes{"pvmove", "snapshot"};
  constexpr std::array infixes{"_cdata", "_cmeta",  "_corig", "_cpool",   "_cvol",   "_imeta",
                               "_iorig", "_mimage", "_mlog",  "_pmspare", "_rimage", "_rmeta",
                               "_tdata", "_tmeta",  "_vdata", "_vorigin", "_wcorig"};
  for (std::string_view prefix : prefixes)
    if (name.starts_with(prefix)) return true;
  return std::any_of(infixes.begin(), infixes.end(),
                     [&](std::string_view infix) { return name.find(infix) != std::string_view::npos; });
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 80)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  if (text.size() > 80) out += "...";
  return out;
}

std::array<unsigned char, 32> sha256(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned int size = digest.size();
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return digest;
}

std::string uuid_text(const uuid_t& uuid) {
  std::array<char, UUID_STR_LEN> text{};
  uuid_unparse_lower(uuid, text.data());
  return text.data();
}

std::string hashed_name(std::string_view name) { return "v-" + sha256_base32(name); }

// Injective and inside the NQN alphabet: everything but [A-Za-z0-9.-] becomes _XX, so '_' itself and the
// separators do too.
std::string escape_nqn(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_alnum(c) || c == '.' || c == '-') {
      out += c;
    } else {
      out += '_';
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
  }
  return out;
}

}  // namespace

Result<AgentVolumeId> AgentVolumeId::parse(std::string_view text) {
  const auto slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto pool = text.substr(0, slash);
    const auto name = text.substr(slash + 1);
    if (is_pool(pool) && is_volume_name(name)) return AgentVolumeId{std::string(pool), std::string(name)};
  }
  return fail(Reason::invalid_argument,
              "agent volume id '" + printable(text) +
                  "' is not of the form <pool>/<name> with letters, digits, '.', '_', '-'");
}

Result<VolumeId> VolumeId::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(Reason::invalid_argument, "volume id '" + printable(text) + "' " + std::string(why) +
                                              "; expected <agent>/<protocol>/<backend>/<pool>/<name>");
  };
  if (text.size() > k_max_volume_id) return bad("is longer than 128 bytes");
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (parts.size() < 3) {
    const auto slash = text.find('/', begin);
    if (slash == std::string_view::npos) return bad("has too few parts");
    parts.push_back(text.substr(begin, slash - begin));
    begin = slash + 1;
  }
  if (!is_object_name(parts[0])) return bad("does not start with an agent name");
  if (parts[1] != "nvmeof-tcp" && parts[1] != "iscsi" && parts[1] != "nfs")
    return bad("names an unknown protocol");
  if (parts[2] != "lvm-lv" && parts[2] != "zfs-zvol" && parts[2] != "zfs-dataset")
    return bad("names an unknown backend");
  auto volume = AgentVolumeId::parse(text.substr(begin));
  if (!volume) return bad("does not end in <pool>/<name>");
  return VolumeId{std::string(parts[0]), std::string(parts[1]), std::string(parts[2]), std::move(*volume)};
}

std::string VolumeId::str() const {
  return agent + "/" + protocol_type + "/" + backend_type + "/" + volume.str();
}

Result<std::string> volume_name_for(std::string_view co_name) {
  if (co_name.empty())
    return fail(Reason::invalid_argument, "volume name is empty; give a name of 1 to 1024 bytes");
  if (co_name.size() > k_max_co_name)
    return fail(Reason::invalid_argument, "volume name of " + std::to_string(co_name.size()) +
                                              " bytes is too long; give a name of 1 to 1024 bytes");
  const bool control = std::any_of(co_name.begin(), co_name.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (control)
    return fail(Reason::invalid_argument,
                "volume name '" + printable(co_name) + "' has control characters; use printable characters");
  // A name that looks like one of our hashes is hashed too, so that the mapping stays injective.
  if (is_volume_name(co_name) && !is_reserved_by_lvm(co_name) && !co_name.starts_with("v-"))
    return std::string(co_name);
  return hashed_name(co_name);
}

Result<VolumeId> make_volume_id(std::string_view agent, std::string_view protocol_type,
                                std::string_view backend_type, std::string_view pool, std::string_view name) {
  VolumeId id{std::string(agent), std::string(protocol_type), std::string(backend_type),
              AgentVolumeId{std::string(pool), std::string(name)}};
  if (id.str().size() > k_max_volume_id && !name.starts_with("v-")) id.volume.name = hashed_name(name);
  if (id.str().size() > k_max_volume_id)
    return fail(Reason::invalid_argument,
                "agent '" + printable(agent) + "' and pool '" + printable(pool) +
                    "' are too long for a volume id of 128 bytes; use shorter names");
  auto checked = VolumeId::parse(id.str());
  if (!checked) return tl::unexpected(checked.error());
  return id;
}

ExportIdentity export_identity(std::string_view cluster_id, std::string_view agent,
                               const AgentVolumeId& volume) {
  // ':' separates the parts and is escaped inside them, so two different triples never meet.
  std::string tail = escape_nqn(cluster_id) + ":" + escape_nqn(agent) + ":" + escape_nqn(volume.str());
  if (k_nqn_prefix.size() + tail.size() > k_max_nqn) tail = "h:" + sha256_base32(tail);
  return export_identity_of_nqn(std::string(k_nqn_prefix) + tail);
}

ExportIdentity export_identity_of_nqn(std::string_view nqn) {
  const std::string uuid = uuid_v5(nqn);
  return ExportIdentity{std::string(nqn), uuid, uuid, sha256_hex(nqn).substr(0, 20)};
}

bool is_valid_nqn(std::string_view nqn) {
  if (nqn.size() > k_max_nqn || !nqn.starts_with("nqn.") || nqn.size() < 12) return false;
  return std::all_of(nqn.begin(), nqn.end(),
                     [](char c) { return c > 0x20 && c < 0x7f && c != '/' && c != ','; });
}

bool is_our_nqn(std::string_view nqn) { return is_valid_nqn(nqn) && nqn.starts_with(k_nqn_prefix); }

std::string escape_file_name(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    // A leading dot would hide the file or be "." or "..".
    if (is_alnum(c) || c == '_' || c == '-' || (c == '.' && !out.empty())) {
      out += c;
    } else {
      out += '%';
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
  }
  // '%' cannot start a hashed name's prefix by accident: "h-" names are hashed as well.
  if (out.size() > k_max_file_name || out.starts_with("h-")) return "h-" + sha256_base32(text);
  return out;
}

bool is_object_name(std::string_view text) {
  if (text.empty() || text.size() > 253) return false;
  char previous = '.';
  for (char c : text) {
    const bool lower = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!lower && c != '-' && c != '.') return false;
    if ((previous == '.' && !lower) || (c == '.' && previous == '-')) return false;
    previous = c;
  }
  return previous != '-' && previous != '.';
}

std::string sha256_base32(std::string_view text) {
  constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz234567";
  std::string out;
  unsigned int buffer = 0;
  unsigned int bits = 0;
  for (unsigned char byte : sha256(text)) {
    buffer = (buffer << 8U) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      out += alphabet[(buffer >> bits) & 31U];
    }
    buffer &= (1U << bits) - 1U;
  }
  if (bits > 0) out += alphabet[(buffer << (5 - bits)) & 31U];
  return out;
}

std::string sha256_hex(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (unsigned char byte : sha256(text)) {
    out += digits[byte >> 4U];
    out += digits[byte & 15U];
  }
  return out;
}

std::string uuid_v5(std::string_view text) {
  uuid_t uuid;
  uuid_generate_sha1(uuid, *uuid_get_template("url"), text.data(), text.size());
  return uuid_text(uuid);
}

std::string uuid_v4() {
  uuid_t uuid;
  uuid_generate_random(uuid);
  return uuid_text(uuid);
}

Result<IpAddress> IpAddress::parse(std::string_view text) {
  const auto bad = [&] {
    return fail(Reason::invalid_argument, "address '" + printable(text) + "' is not an IPv4 or IPv6 literal");
  };
  std::string literal(text);
  if (literal.size() > 2 && literal.front() == '[' && literal.back() == ']')
    literal = literal.substr(1, literal.size() - 2);
  std::string scope;
  if (const auto percent = literal.find('%'); percent != std::string::npos) {
    scope = literal.substr(percent);
    literal.resize(percent);
    const bool named =
        scope.size() > 1 && scope.size() <= 16 && std::all_of(scope.begin() + 1, scope.end(), [](char c) {
          return is_alnum(c) || c == '.' || c == '-' || c == '_' || c == '@';
        });
    if (!named) return bad();
  }
  std::array<unsigned char, 16> binary{};
  std::array<char, INET6_ADDRSTRLEN> canonical{};
  if (scope.empty() && inet_pton(AF_INET, literal.c_str(), binary.data()) == 1) {
    inet_ntop(AF_INET, binary.data(), canonical.data(), canonical.size());
    return IpAddress{canonical.data(), false};
  }
  if (inet_pton(AF_INET6, literal.c_str(), binary.data()) == 1) {
    inet_ntop(AF_INET6, binary.data(), canonical.data(), canonical.size());
    return IpAddress{canonical.data() + scope, true};
  }
  return bad();
}

}  // namespace pillar
