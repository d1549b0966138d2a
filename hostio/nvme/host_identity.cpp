#include "hostio/nvme/host_identity.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "hostio/block_device.hpp"
#include "hostio/durable_file.hpp"
#include "hostio/sysfs.hpp"
#include "messages/ids.hpp"

namespace pillar::hostio {
namespace {

constexpr std::string_view k_uuid_nqn = "nqn.2014-08.org.nvmexpress:uuid:";
constexpr std::size_t k_file_limit = 4096;

bool is_uuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const char c = text[i];
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (dash ? c != '-' : !hex) return false;
  }
  return true;
}

bool is_nil(std::string_view uuid) {
  return std::all_of(uuid.begin(), uuid.end(), [](char c) { return c == '0' || c == '-'; });
}

tl::unexpected<Error> corrupt(const std::string& file, std::string_view seen) {
  return fail(Reason::state_corrupt,
              "host identity file " + file + " " + std::string(seen) +
                  ": restore its content from a backup; only if no volume was ever attached from this node, "
                  "delete the host NQN and the host id file together so that a new identity is made");
}

Result<std::string> check_id(const std::string& file, std::string_view text) {
  const auto value = trim(text);
  if (value.empty()) return corrupt(file, "is empty");
  if (!is_uuid(value)) return corrupt(file, "does not hold a UUID");
  if (is_nil(value))
    return corrupt(file, "holds the all-zero UUID, which every machine without a system UUID shares");
  return lower(value);
}

Result<std::string> check_nqn(const std::string& file, std::string_view text) {
  const auto value = trim(text);
  if (value.empty()) return corrupt(file, "is empty");
  if (!is_valid_nqn(value)) return corrupt(file, "does not hold a valid NQN");
  if (value.starts_with(k_uuid_nqn)) {
    const auto uuid = value.substr(k_uuid_nqn.size());
    if (!is_uuid(uuid)) return corrupt(file, "holds a truncated host NQN");
    if (is_nil(uuid))
      return corrupt(file, "holds the all-zero UUID, which every machine without a system UUID shares");
  }
  return std::string(value);
}

Result<std::optional<std::string>> read_optional(const std::string& file) {
  auto text = read_file(file, k_file_limit);
  if (text) return std::optional<std::string>(std::move(*text));
  if (text.error().reason == Reason::not_found) return std::optional<std::string>();
  return tl::unexpected(with_context(text.error(), "host identity"));
}

Result<void> write_identity_file(const std::string& file, const std::string& value) {
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ec);
  auto done = write_file_durable(file, value + "\n", 0644);
  if (!done) return tl::unexpected(with_context(done.error(), "host identity"));
  return {};
}

}  // namespace

Result<HostIdentityDecision> decide_host_identity(const HostIdentityPaths& paths,
                                                  std::optional<std::string_view> nqn_text,
                                                  std::optional<std::string_view> id_text,
                                                  const std::string& fresh_uuid) {
  if (!nqn_text && !id_text)
    return HostIdentityDecision{{std::string(k_uuid_nqn) + fresh_uuid, fresh_uuid}, true, true};
  HostIdentityDecision decision;
  if (nqn_text) {
    auto nqn = check_nqn(paths.nqn_file, *nqn_text);
    if (!nqn) return tl::unexpected(nqn.error());
    decision.identity.nqn = std::move(*nqn);
  }
  if (id_text) {
    auto id = check_id(paths.id_file, *id_text);
    if (!id) return tl::unexpected(id.error());
    decision.identity.id = std::move(*id);
  }
  if (!nqn_text) {
    decision.identity.nqn = std::string(k_uuid_nqn) + decision.identity.id;
    decision.write_nqn = true;
  }
  if (!id_text) {
    if (!decision.identity.nqn.starts_with(k_uuid_nqn))
      return fail(Reason::state_corrupt, "host id file " + paths.id_file + " is missing and host NQN " +
                                             decision.identity.nqn + " in " + paths.nqn_file +
                                             " does not contain a UUID to derive it from: restore " +
                                             paths.id_file);
    decision.identity.id = lower(std::string_view(decision.identity.nqn).substr(k_uuid_nqn.size()));
    decision.write_id = true;
  }
  return decision;
}

namespace {

Result<HostIdentityDecision> read_host_identity(const HostIdentityPaths& paths) {
  const auto nqn_text = read_optional(paths.nqn_file);
  if (!nqn_text) return tl::unexpected(nqn_text.error());
  const auto id_text = read_optional(paths.id_file);
  if (!id_text) return tl::unexpected(id_text.error());
  return decide_host_identity(paths, *nqn_text, *id_text, uuid_v4());
}

/// Held while an identity is made: two programs that start at once must end up with the same one. Without a
/// directory to lock there is none to write into either, and the write says so.
UniqueFd lock_directory_of(const std::string& file) {
  const auto directory = std::filesystem::path(file).parent_path();
  std::error_code ec;
  std::filesystem::create_directories(directory, ec);
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (fd && ::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return fd;
}

}  // namespace

Result<HostIdentity> load_or_create_host_identity(const HostIdentityPaths& paths) {
  auto decision = read_host_identity(paths);
  if (!decision) return tl::unexpected(decision.error());
  if (!decision->write_id && !decision->write_nqn) return decision->identity;
  const UniqueFd lock = lock_directory_of(paths.id_file);
  decision = read_host_identity(paths);
  if (!decision) return tl::unexpected(decision.error());
  if (decision->write_id) {
    if (auto done = write_identity_file(paths.id_file, decision->identity.id); !done)
      return tl::unexpected(done.error());
  }
  if (decision->write_nqn) {
    if (auto done = write_identity_file(paths.nqn_file, decision->identity.nqn); !done)
      return tl::unexpected(done.error());
  }
  return decision->identity;
}

}  // namespace pillar::hostio
