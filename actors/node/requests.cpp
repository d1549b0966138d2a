#include "actors/node/requests.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "hostio/filesystem.hpp"

namespace pillar::node {
namespace {

constexpr std::size_t k_max_path = 4095;
constexpr std::string_view k_protocol = "nvmeof-tcp";

std::string shown(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 200)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return "'" + out + "'";
}

tl::unexpected<Error> bad_key(std::string_view key, std::string_view value, const std::string& want) {
  return fail(Reason::invalid_argument,
              "context key " + std::string(key) + " is " + shown(value) + "; expected " + want);
}

std::string own(std::string_view name) { return std::string(k_key_prefix) + std::string(name); }

std::optional<std::string> lookup(const Context& context, const std::string& key) {
  const auto at = context.find(key);
  return at == context.end() ? std::nullopt : std::optional(at->second);
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

Result<void> read_tunable(const Context& context, std::string_view name, std::optional<std::int32_t>& into) {
  const auto text = lookup(context, own(name));
  if (!text) return {};
  into = number<std::int32_t>(*text);
  if (!into) return bad_key(own(name), *text, "a decimal number");
  return {};
}

Result<void> read_list(const Context& context, std::string_view name, std::vector<std::string>& into) {
  const auto text = lookup(context, own(name));
  if (!text) return {};
  try {
    into = nlohmann::json::parse(*text).get<std::vector<std::string>>();
  } catch (const std::exception&) {
    return bad_key(own(name), *text, "a JSON list of strings");
  }
  return {};
}

Result<void> read_tunables(const Context& context, hostio::FabricsTunables& tunables) {
  const std::array<std::pair<std::string_view, std::optional<std::int32_t>*>, 4> table{{
      {"nvmeof-max-queue-size", &tunables.queue_size},
      {"nvmeof-nr-io-queues", &tunables.nr_io_queues},
      {"nvmeof-ctrl-loss-tmo", &tunables.ctrl_loss_tmo},
      {"nvmeof-reconnect-delay", &tunables.reconnect_delay},
  }};
  for (const auto& [name, into] : table)
    if (auto read = read_tunable(context, name, *into); !read) return read;
  return hostio::validate(tunables);
}

Result<std::optional<std::string>> read_address(const Context& context, const std::string& key) {
  const auto text = lookup(context, key);
  if (!text) return std::optional<std::string>();
  auto address = IpAddress::parse(*text);
  if (!address) return tl::unexpected(with_context(address.error(), "context key " + key));
  return std::optional(address->text);
}

Result<std::optional<std::uint16_t>> read_port(const Context& context, const std::string& key) {
  const auto text = lookup(context, key);
  if (!text) return std::optional<std::uint16_t>();
  const auto port = number<std::uint16_t>(*text);
  if (!port || *port == 0) return bad_key(key, *text, "a port number from 1 to 65535");
  return port;
}

Result<SessionTarget> read_session(const VolumeId& volume, const Context& context) {
  for (const char* key : {"target_id", "address", "port"})
    if (!lookup(context, key))
      return fail(Reason::invalid_argument, std::string("volume_context has no key ") + key +
                                                "; pass the context that CreateVolume returned");
  const std::string type = lookup(context, own("protocol-type")).value_or(std::string(k_protocol));
  if (type != k_protocol || volume.protocol_type != k_protocol)
    return bad_key(own("protocol-type"), type, "nvmeof-tcp, for this volume and in its id");
  if (const auto ref = lookup(context, own("volume-ref")); ref && *ref != volume.volume.str())
    return bad_key(own("volume-ref"), *ref, volume.volume.str() + ", the volume in the volume id");
  const std::string nqn = *lookup(context, "target_id");
  if (!is_our_nqn(nqn)) return bad_key("target_id", nqn, "a subsystem NQN of this driver");
  if (nqn_belongs_to(nqn, volume) == Ownership::no)
    return bad_key("target_id", nqn, "the subsystem of volume " + volume.str());
  auto address = read_address(context, "address");
  if (!address) return tl::unexpected(address.error());
  auto port = read_port(context, "port");
  if (!port) return tl::unexpected(port.error());
  return SessionTarget{std::string(k_protocol), nqn, **address, **port,
                       export_identity_of_nqn(nqn).namespace_uuid};
}

bool below(std::string_view path, std::string_view directory) {
  return path == directory || (path.starts_with(directory) && path.size() > directory.size() &&
                               (directory.back() == '/' || path[directory.size()] == '/'));
}

bool clean_components(std::string_view path) {
  std::size_t begin = 1;
  while (begin <= path.size()) {
    const auto slash = std::min(path.find('/', begin), path.size());
    const auto part = path.substr(begin, slash - begin);
    const bool last_empty = part.empty() && slash == path.size();  // one trailing slash is harmless
    if (part == "." || part == ".." || (part.empty() && !last_empty)) return false;
    begin = slash + 1;
  }
  return true;
}

std::vector<std::string> merged_flags(const VolumeContext& context, const csi::VolumeCapability& capability) {
  std::vector<std::string> flags = context.mount_options;
  for (const auto& flag : capability.mount().mount_flags())
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.push_back(flag);
  return flags;
}

Result<Capability> capability_of(bool present, const csi::VolumeCapability& wire) {
  if (!present)
    return fail(Reason::invalid_argument, "the request has no volume capability; give access mode and type");
  if (!wire.mount().volume_mount_group().empty())
    return fail(
        Reason::invalid_argument,
        "volume_mount_group is not offered (no VOLUME_MOUNT_GROUP capability); leave it empty and let "
        "the orchestrator set group ownership");
  return parse_capability(wire);
}

Result<void> fill_mount(StageRequest& stage, const csi::NodeStageVolumeRequest& request) {
  auto& usage = stage.usage;
  const auto& asked = request.volume_capability().mount().fs_type();
  usage.fs_type = asked.empty() ? stage.context.fs_type : asked;
  if (auto known = hostio::check_fs_type(usage.fs_type); !known) return known;
  if (auto good = hostio::check_mkfs_options(usage.fs_type, stage.context.mkfs_options); !good)
    return tl::unexpected(good.error());
  auto options = hostio::parse_mount_options(
      usage.fs_type, merged_flags(stage.context, request.volume_capability()), usage.readonly);
  if (!options) return tl::unexpected(options.error());
  stage.mount_options = *options;
  usage.readonly = usage.readonly || options->read_only;
  usage.mount_options = options->str();
  return {};
}

}  // namespace

Ownership nqn_belongs_to(std::string_view nqn, const VolumeId& volume) {
  if (!is_our_nqn(nqn)) return Ownership::no;
  const auto tail = nqn.substr(k_nqn_prefix.size());
  if (tail.starts_with("h:")) return Ownership::unknown;
  const auto colon = tail.find(':');
  if (colon == std::string_view::npos) return Ownership::no;
  // The cluster id of the NQN is not known here; agent and volume are, so the rest is compared in the encoded
  // form.
  constexpr std::string_view any_cluster = "x";
  const std::string model = export_identity(any_cluster, volume.agent, volume.volume).nqn;
  const auto model_tail = std::string_view(model).substr(k_nqn_prefix.size());
  if (model_tail.starts_with("h:")) return Ownership::unknown;
  return model_tail.substr(any_cluster.size()) == tail.substr(colon) ? Ownership::yes : Ownership::no;
}

Result<VolumeContext> parse_volume_context(const VolumeId& volume, const Context& context) {
  VolumeContext parsed;
  auto session = read_session(volume, context);
  if (!session) return tl::unexpected(session.error());
  parsed.session = *session;
  if (auto read = read_tunables(context, parsed.tunables); !read) return tl::unexpected(read.error());
  if (const auto type = lookup(context, own("fs-type")); type && !type->empty()) parsed.fs_type = *type;
  if (!is_supported_fs_type(parsed.fs_type)) return bad_key(own("fs-type"), parsed.fs_type, "ext4 or xfs");
  if (auto read = read_list(context, "mkfs-options", parsed.mkfs_options); !read)
    return tl::unexpected(read.error());
  if (auto read = read_list(context, "mount-options", parsed.mount_options); !read)
    return tl::unexpected(read.error());
  return parsed;
}

Result<PublishContext> parse_publish_context(const Context& context, std::string_view host_nqn) {
  const auto generation_key = own("publication-generation");
  const auto initiator_key = own("initiator-id");
  for (const auto& key : {generation_key, initiator_key})
    if (!lookup(context, key))
      return fail(
          Reason::dependency_missing,
          "publish_context has no key " + key +
              "; the volume must be published to this node (ControllerPublishVolume) before it is staged");
  PublishContext parsed;
  const auto generation = number<std::uint64_t>(*lookup(context, generation_key));
  if (!generation || *generation == 0)
    return bad_key(generation_key, *lookup(context, generation_key), "a number of at least 1");
  parsed.generation = *generation;
  parsed.initiator_id = *lookup(context, initiator_key);
  if (parsed.initiator_id != host_nqn)
    return fail(Reason::published_elsewhere,
                "the volume was published to host " + shown(parsed.initiator_id) + " but this node is " +
                    shown(host_nqn) + "; unpublish it and publish it again to this node");
  if (const auto bytes = lookup(context, own("capacity-bytes"))) {
    const auto value = number<std::uint64_t>(*bytes);
    if (!value) return bad_key(own("capacity-bytes"), *bytes, "a number of bytes");
    parsed.capacity_bytes = *value;
  }
  if (const auto formatted = lookup(context, own("formatted"))) {
    if (*formatted != "true" && *formatted != "false")
      return bad_key(own("formatted"), *formatted, "true or false");
    parsed.formatted = *formatted == "true";
  }
  auto address = read_address(context, own("address"));
  if (!address) return tl::unexpected(address.error());
  parsed.address = *address;
  auto port = read_port(context, own("port"));
  if (!port) return tl::unexpected(port.error());
  parsed.port = *port;
  return parsed;
}

Result<void> check_path(std::string_view what, std::string_view path, const RequestRules& rules) {
  const auto bad = [&](const std::string& why) {
    return fail(Reason::invalid_argument, std::string(what) + " " + shown(path) + " " + why);
  };
  if (path.empty())
    return fail(Reason::invalid_argument, std::string(what) + " is empty; give an absolute path");
  if (path.size() > k_max_path) return bad("is longer than 4095 bytes");
  if (path.front() != '/') return bad("is not absolute");
  if (std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
    return bad("has control characters");
  if (!clean_components(path)) return bad("has an empty, '.' or '..' component");
  constexpr std::array system{"/bin",  "/boot", "/dev",  "/etc", "/lib", "/lib64",
                              "/proc", "/root", "/sbin", "/sys", "/usr"};
  for (std::string_view directory : system)
    if (below(path, directory)) return bad("lies in a system directory");
  if (path.find_first_not_of('/') == std::string_view::npos) return bad("is the root directory");
  const auto& prefixes = rules.allowed_prefixes;
  if (!prefixes.empty() &&
      std::none_of(prefixes.begin(), prefixes.end(), [&](const auto& each) { return below(path, each); }))
    return bad("is not below any of the allowed directories; the first is " + prefixes.front());
  return {};
}

Result<void> check_id_and_path(std::string_view volume_id, std::string_view what, std::string_view path,
                               const RequestRules& rules) {
  if (volume_id.empty()) return fail(Reason::invalid_argument, "volume id is empty; give the id of a volume");
  return check_path(what, path, rules);
}

Result<void> check_volume_path(std::string_view volume_id, std::string_view path, const RequestRules& rules) {
  if (!volume_id.empty() && !path.empty() && path.front() != '/')
    return fail(Reason::not_found, "volume path " + shown(path) + " is relative: no volume has a path there");
  return check_id_and_path(volume_id, "volume path", path, rules);
}

Result<StageRequest> parse_stage(const csi::NodeStageVolumeRequest& request, const RequestRules& rules) {
  StageRequest stage;
  stage.volume_id = request.volume_id();
  stage.path = request.staging_target_path();
  if (auto good = check_id_and_path(stage.volume_id, "staging target path", stage.path, rules); !good)
    return tl::unexpected(good.error());
  auto capability = capability_of(request.has_volume_capability(), request.volume_capability());
  if (!capability) return tl::unexpected(capability.error());
  auto volume = VolumeId::parse(stage.volume_id);
  if (!volume) return tl::unexpected(Error{Code::not_found, Reason::not_found, volume.error().message, {}});
  stage.volume = *volume;
  auto publish = parse_publish_context(to_context(request.publish_context()), rules.host_nqn);
  if (!publish) return tl::unexpected(publish.error());
  stage.publish = *publish;
  auto context = parse_volume_context(*volume, to_context(request.volume_context()));
  if (!context) return tl::unexpected(context.error());
  stage.context = *context;
  auto& session = stage.context.session;
  session.address = stage.publish.address.value_or(session.address);
  session.port = stage.publish.port.value_or(session.port);
  stage.usage.mode = capability->mode;
  stage.usage.access = capability->access;
  stage.usage.readonly = capability->info().readonly;
  if (capability->mode == VolumeMode::mount)
    if (auto filled = fill_mount(stage, request); !filled) return tl::unexpected(filled.error());
  return stage;
}

Result<PublishRequest> parse_publish(const csi::NodePublishVolumeRequest& request,
                                     const RequestRules& rules) {
  PublishRequest publish;
  publish.volume_id = request.volume_id();
  publish.staging_path = request.staging_target_path();
  publish.target = request.target_path();
  if (auto good = check_id_and_path(publish.volume_id, "target path", publish.target, rules); !good)
    return tl::unexpected(good.error());
  auto capability = capability_of(request.has_volume_capability(), request.volume_capability());
  if (!capability) return tl::unexpected(capability.error());
  if (publish.staging_path.empty())
    return fail(Reason::not_staged,
                "the request has no staging target path; stage the volume first and pass its path");
  if (auto good = check_path("staging target path", publish.staging_path, rules); !good)
    return tl::unexpected(good.error());
  publish.capability = *capability;
  const auto& flags = request.volume_capability().mount().mount_flags();
  publish.mount_flags.assign(flags.begin(), flags.end());
  publish.readonly = request.readonly() || capability->info().readonly ||
                     std::find(flags.begin(), flags.end(), "ro") != flags.end();
  return publish;
}

}  // namespace pillar::node
