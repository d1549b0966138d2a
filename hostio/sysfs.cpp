#include "hostio/sysfs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "hostio/block_device.hpp"
#include "hostio/exhaustion.hpp"

namespace pillar::hostio {

namespace {

thread_local unsigned exhausted = 0;

void note_failure(int code) {
  if (code == EMFILE || code == ENFILE || code == ENOMEM) ++exhausted;
}

}  // namespace

unsigned exhausted_reads() { return exhausted; }

Result<void> check_not_exhausted(unsigned before, std::string_view what) {
  if (exhausted == before) return {};
  return fail(Reason::io_error, Code::unavailable,
              std::string(what) + " cannot be read: out of file descriptors or memory; try again");
}

std::optional<std::string> read_attribute(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    note_failure(errno);
    return std::nullopt;
  }
  std::string text;
  std::array<char, 4096> chunk{};
  for (;;) {
    const auto got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    text.append(chunk.data(), static_cast<std::size_t>(got));
    if (text.size() > 64 * chunk.size()) return std::nullopt;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<unsigned long long> read_attribute_number(const std::string& path) {
  const auto text = read_attribute(path);
  if (!text) return std::nullopt;
  unsigned long long value = 0;
  const auto* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

int write_attribute(const std::string& path, std::string_view value) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return errno;
  ssize_t put = 0;
  do {
    put = ::write(fd.get(), value.data(), value.size());
  } while (put < 0 && errno == EINTR);
  if (put < 0) return errno;
  return static_cast<std::size_t>(put) == value.size() ? 0 : EIO;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code ec;
  for (auto it = std::filesystem::directory_iterator(path, ec);
       !ec && it != std::filesystem::directory_iterator(); it.increment(ec))
    names.push_back(it->path().filename().string());
  note_failure(ec.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace pillar::hostio
