#include "tools/pillarctl/manifest.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <map>

#include <nlohmann/json.hpp>

#include "crd/validation.hpp"

namespace pillar::pillarctl {
namespace {

std::string placed(const std::string& file, crd::Position at) {
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

Result<std::string> read_all(const std::string& file, std::istream& input) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file, std::ios::binary);
    if (!stream) return fail(Reason::invalid_argument, file + ": " + std::strerror(errno));
  }
  std::istream& from = file == "-" ? input : stream;
  std::string text;
  std::array<char, 65536> block{};
  // One block more than is accepted is enough to be refused; the rest may have no end.
  while (from && text.size() <= crd::k_max_yaml) {
    from.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block.data(), static_cast<std::size_t>(from.gcount()));
  }
  if (from.bad()) return fail(Reason::invalid_argument, file + ": cannot be read (is it a directory?)");
  return text;
}

std::string text_of(const nlohmann::json& value, const char* key) {
  return value.is_object() && value.contains(key) && value[key].is_string() ? value[key].get<std::string>()
                                                                            : "";
}

/// Kind and name as far as the document tells, for errors.
std::string label_of(const nlohmann::json& value) {
  const auto name = value.is_object() && value.contains("metadata") ? text_of(value["metadata"], "name") : "";
  const auto kind = text_of(value, "kind");
  return (kind.empty() ? "resource" : kind) + (name.empty() ? "" : "/" + name);
}

/// Collects the resources of one file.
class Loader {
 public:
  void add(const std::string& file, const std::string& text) {
    auto documents = crd::parse_yaml(text, file);
    if (!documents) {
      problems.push_back(documents.error().message);
      return;
    }
    if (documents->empty()) problems.push_back(file + ": holds no resources");
    for (auto& document : *documents) add(file, std::move(document));
  }

  std::vector<Manifest> manifests;
  std::vector<std::string> problems;

 private:
  void add(const std::string& file, crd::YamlDocument document) {
    auto object = crd::parse_object(document.value.json());
    if (!object) return report(file, document, object.error());
    // Status belongs to the controller; a manifest that was read from a store may carry it.
    object->status = crd::Doc();
    const auto admitted = crd::admit_new(*object);
    if (!admitted) return report(file, document, admitted.error());
    const auto name = crd::subject(*object);
    const auto [earlier, fresh] = seen_.emplace(name, placed(file, document.start));
    if (!fresh) {
      problems.push_back(placed(file, document.start) + ": " + name + " occurs twice, first at " +
                         earlier->second);
      return;
    }
    manifests.push_back({file, std::move(document), std::move(*object)});
  }

  void report(const std::string& file, const crd::YamlDocument& document, const crd::FieldErrors& errors) {
    for (const auto& error : errors)
      problems.push_back(placed(file, document.position_of(error.path)) + ": " +
                         label_of(document.value.json()) + ": " + crd::to_string(error));
  }

  std::map<std::string, std::string> seen_;
};

}  // namespace

std::string Manifest::at(const std::string& path) const { return placed(file, document.position_of(path)); }

tl::expected<std::vector<Manifest>, std::vector<std::string>> load_manifests(
    const std::vector<std::string>& files, std::istream& input) {
  Loader loader;
  for (const auto& file : files) {
    const auto text = read_all(file, input);
    if (text)
      loader.add(file == "-" ? "stdin" : file, *text);
    else
      loader.problems.push_back(text.error().message);
  }
  if (!loader.problems.empty()) return tl::unexpected(std::move(loader.problems));
  return std::move(loader.manifests);
}

}  // namespace pillar::pillarctl
