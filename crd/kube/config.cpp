#include "crd/kube/config.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "crd/yaml.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;

tl::unexpected<Error> wrong(const std::string& file, const std::string& why) {
  return fail(Reason::invalid_argument, "kubeconfig " + file + ": " + why);
}

Result<std::string> read_file(const std::string& path, std::string_view what) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || !text)
    return fail(Reason::dependency_missing,
                std::string(what) + " " + path + " cannot be read: " +
                    (std::filesystem::exists(path) ? "check its permissions" : "it does not exist"));
  return text.str();
}

std::string text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

/// One kubeconfig file.
struct File {
  std::string path;
  json content;
};

Result<File> parse_file(const std::string& path) {
  auto text = read_file(path, "kubeconfig");
  if (!text) return tl::unexpected(text.error());
  auto documents = parse_yaml(*text, path);
  if (!documents) return tl::unexpected(documents.error());
  if (documents->size() != 1 || !documents->front().value.json().is_object())
    return wrong(path, "must be one YAML document of kind Config");
  return File{path, documents->front().value.json()};
}

/// An entry of one of the named lists, and the file that has it.
struct Entry {
  const File* file = nullptr;
  json value = json::object();
};

/// `{name: NAME, MEMBER: {...}}` in `list`, of the first file that has it.
std::optional<Entry> find_entry(const std::vector<File>& files, const char* list, const char* member,
                                const std::string& name) {
  for (const auto& file : files) {
    const auto it = file.content.find(list);
    if (it == file.content.end() || !it->is_array()) continue;
    for (const auto& one : *it)
      if (one.is_object() && text_of(one, "name") == name) {
        Entry out;
        out.file = &file;
        if (one.contains(member) && one[member].is_object()) out.value = one[member];
        return out;
      }
  }
  return std::nullopt;
}

/// Relative paths start at the kubeconfig's folder.
std::string beside(const File& file, const std::filesystem::path& path) {
  return path.is_absolute() ? path.string()
                            : (std::filesystem::path(file.path).parent_path() / path).string();
}

/// NAME-data (base64) or NAME (a file, relative to the kubeconfig).
Result<Material> material(const Entry& entry, const std::string& name) {
  Material out;
  const auto data = text_of(entry.value, (name + "-data").c_str());
  if (!data.empty()) {
    auto decoded = decode_base64(data);
    if (!decoded) return wrong(entry.file->path, name + "-data is not base64");
    out.data = std::move(*decoded);
    return out;
  }
  const std::filesystem::path path = text_of(entry.value, name.c_str());
  if (!path.empty()) out.file = beside(*entry.file, path);
  return out;
}

Result<void> take_cluster(const Entry& entry, const std::string& name, Config& config) {
  config.server = text_of(entry.value, "server");
  if (config.server.empty()) return wrong(entry.file->path, "cluster \"" + name + "\" lacks server");
  if (!text_of(entry.value, "proxy-url").empty())
    return fail(Reason::unsupported, "kubeconfig " + entry.file->path + ": proxy-url of cluster \"" + name +
                                         "\" is not supported; use a server that is reached directly");
  auto ca = material(entry, "certificate-authority");
  if (!ca) return tl::unexpected(ca.error());
  config.ca = std::move(*ca);
  config.server_name = text_of(entry.value, "tls-server-name");
  const auto insecure = entry.value.find("insecure-skip-tls-verify");
  config.verify = insecure == entry.value.end() || !insecure->is_boolean() || !insecure->get<bool>();
  return {};
}

Result<void> take_user(const Entry& entry, const std::string& name, Config& config) {
  for (const char* plugin : {"exec", "auth-provider"})
    if (entry.value.contains(plugin))
      return fail(Reason::unsupported, "kubeconfig " + entry.file->path + ": user \"" + name + "\" uses " +
                                           plugin +
                                           ", which is not supported; use a token or a client certificate, "
                                           "for example `kubectl create token`");
  if (entry.value.contains("username"))
    return fail(Reason::unsupported, "kubeconfig " + entry.file->path + ": user \"" + name +
                                         "\" uses a password, which Kubernetes does not accept any more");
  auto certificate = material(entry, "client-certificate");
  if (!certificate) return tl::unexpected(certificate.error());
  auto key = material(entry, "client-key");
  if (!key) return tl::unexpected(key.error());
  if (certificate->empty() != key->empty())
    return wrong(entry.file->path,
                 "user \"" + name + "\" needs both of client-certificate and client-key, or none");
  config.certificate = std::move(*certificate);
  config.key = std::move(*key);
  config.token.data = text_of(entry.value, "token");
  const auto token_file = text_of(entry.value, "tokenFile");
  if (config.token.data.empty() && !token_file.empty()) config.token.file = beside(*entry.file, token_file);
  return {};
}

std::string trimmed(std::string text) {
  const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
  return text;
}

Result<std::vector<File>> parse_files(const std::string& paths) {
  std::vector<File> out;
  std::istringstream words(paths);
  for (std::string path; std::getline(words, path, ':');) {
    if (path.empty()) continue;
    const bool only = paths.find(':') == std::string::npos;
    if (!only && !std::filesystem::exists(path)) continue;
    auto file = parse_file(path);
    if (!file) return tl::unexpected(file.error());
    out.push_back(std::move(*file));
  }
  if (out.empty()) return fail(Reason::not_found, "no kubeconfig file: \"" + paths + "\"");
  return out;
}

}  // namespace

Result<std::string> Material::read(std::string_view what) const {
  if (file.empty()) return data;
  return read_file(file, what);
}

Result<Config> in_cluster_config(const std::string& directory) {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (!host || !*host || !port || !*port)
    return fail(Reason::dependency_missing,
                "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; name a "
                "kubeconfig");
  Config out;
  out.source = "in-cluster";
  const std::string name = host;
  out.server = "https://" + (name.find(':') == std::string::npos ? name : "[" + name + "]") + ":" + port;
  out.ca.file = directory + "/ca.crt";
  out.token.file = directory + "/token";
  for (const auto* material : {&out.ca, &out.token})
    if (const auto there = material->read("service account file"); !there)
      return tl::unexpected(there.error());
  if (const auto name_space = read_file(directory + "/namespace", "service account file"))
    out.name_space = trimmed(*name_space);
  return out;
}

Result<Config> load_kubeconfig(const std::string& paths, const std::string& context) {
  const auto files = parse_files(paths);
  if (!files) return tl::unexpected(files.error());
  auto name = context;
  for (const auto& file : *files)
    if (name.empty()) name = text_of(file.content, "current-context");
  const auto& first = files->front().path;
  if (name.empty()) return wrong(first, "has no current-context; name one");
  const auto chosen = find_entry(*files, "contexts", "context", name);
  if (!chosen) return wrong(first, "has no context \"" + name + "\"");
  Config out;
  out.source = paths;
  if (const auto wanted = text_of(chosen->value, "namespace"); !wanted.empty()) out.name_space = wanted;
  const auto cluster_name = text_of(chosen->value, "cluster");
  const auto cluster = find_entry(*files, "clusters", "cluster", cluster_name);
  if (!cluster)
    return wrong(first,
                 "context \"" + name + "\" names cluster \"" + cluster_name + "\", which is not there");
  if (auto taken = take_cluster(*cluster, cluster_name, out); !taken) return tl::unexpected(taken.error());
  const auto user_name = text_of(chosen->value, "user");
  if (user_name.empty()) return out;
  const auto user = find_entry(*files, "users", "user", user_name);
  if (!user)
    return wrong(first, "context \"" + name + "\" names user \"" + user_name + "\", which is not there");
  if (auto taken = take_user(*user, user_name, out); !taken) return tl::unexpected(taken.error());
  return out;
}

Result<Config> find_config(const std::string& kubeconfig, const std::string& context) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (!kubeconfig.empty()) return load_kubeconfig(kubeconfig, context);
  if (const auto files = variable("KUBECONFIG"); !files.empty()) return load_kubeconfig(files, context);
  if (context.empty() && !variable("KUBERNETES_SERVICE_HOST").empty()) return in_cluster_config();
  const auto home = variable("HOME");
  if (home.empty())
    return fail(Reason::not_found, "no cluster is known: set KUBECONFIG or name a kubeconfig file");
  return load_kubeconfig(home + "/.kube/config", context);
}

std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr std::string_view k_alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  std::size_t digits = 0;
  std::size_t padding = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r') continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const auto value = k_alphabet.find(c);
    if (value == std::string_view::npos || padding != 0) return std::nullopt;
    ++digits;
    bits = (bits << 6U) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>((bits >> static_cast<unsigned>(count)) & 0xFFU));
    }
  }
  if (padding > 2 || (digits + padding) % 4 != 0) return std::nullopt;
  return out;
}

}  // namespace pillar::crd::kube
