#include "crd/option_patterns.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>

#include "crd/filesystem_options.hpp"

namespace pillar::crd {
namespace {

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// Numbers with the digits of `low`, from `low` to `high`; both have as many digits.
std::string same_length_range(const std::string& low, const std::string& high) {
  const auto any = [](std::size_t count) {
    return count == 0 ? std::string() : count == 1 ? "[0-9]" : "[0-9]{" + std::to_string(count) + "}";
  };
  const auto digits = [](char from, char to) {
    return from == to ? std::string(1, from) : std::string("[") + from + "-" + to + "]";
  };
  if (low.size() == 1) return digits(low[0], high[0]);
  const auto rest = low.size() - 1;
  const std::string zeros(rest, '0');
  const std::string nines(rest, '9');
  const auto low_rest = low.substr(1);
  const auto high_rest = high.substr(1);
  if (low_rest == zeros && high_rest == nines) return digits(low[0], high[0]) + any(rest);
  if (low[0] == high[0]) return low[0] + ("(" + same_length_range(low_rest, high_rest) + ")");
  // The first and last leading digit restrict what follows, those between do not.
  std::string out;
  auto first = low[0];
  auto last = high[0];
  if (low_rest != zeros) out += first++ + ("(" + same_length_range(low_rest, nines) + ")|");
  if (high_rest != nines) out += last-- + ("(" + same_length_range(zeros, high_rest) + ")|");
  if (first <= last) return out + digits(first, last) + any(rest);
  out.pop_back();
  return out;
}

/// Integers without sign from `low` to `high`, with leading zeros.
std::string range_pattern(std::int64_t low, std::int64_t high) {
  std::string out;
  for (auto from = low; from <= high;) {
    const auto digits = std::to_string(from).size();
    auto to = std::min(
        high, static_cast<std::int64_t>(number<double>("1e" + std::to_string(digits)).value_or(0)) - 1);
    out += (out.empty() ? "" : "|") + same_length_range(std::to_string(from), std::to_string(to));
    from = to + 1;
  }
  return "0*(" + out + ")";
}

std::string literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != ' ') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

// Decimals are taken with plain digits only.
std::string form_pattern(OptionForm form) {
  if (form.empty()) return "";
  const auto rest = form.substr(1);
  const auto dots = rest.find("..");
  const auto bounds = [&] {
    return std::pair(
        number<std::int64_t>(rest.substr(0, dots)).value_or(0),
        number<std::int64_t>(rest.substr(dots == std::string_view::npos ? 0 : dots + 2)).value_or(0));
  };
  switch (form[0]) {
    case '#':
      return range_pattern(bounds().first, bounds().second);
    case '%':
      return "(" + range_pattern(bounds().first, bounds().second - 1) + R"((\.[0-9]*)?|)" +
             range_pattern(bounds().second, bounds().second) + R"((\.0*)?))";
    case '*':  // that it is a power of two, only the code checks
    case '$': {
      const auto [low, high] = bounds();
      const auto scaled = [&, l = low, h = high](std::int64_t unit) {
        return "(" + range_pattern((l + unit - 1) / unit, h / unit) + ")";
      };
      return "(" + scaled(1) + "|" + scaled(1024) + "[kK]|" + scaled(1024LL * 1024) + "[mM])";
    }
    case '@':
      return "[A-Za-z0-9._-]{1," + std::string(rest) + "}";
    case '~':
      return R"(([A-Za-z0-9:_.-]{1,256}|"[A-Za-z0-9:_.,-]{1,256}"))";
    default:
      break;
  }
  std::string words;
  for (std::size_t begin = 0; begin <= form.size();) {
    const auto end = std::min(form.find('|', begin), form.size());
    words += (words.empty() ? "" : "|") + literal(form.substr(begin, end - begin));
    begin = end + 1;
  }
  return "(" + words + ")";
}

namespace {

std::string value_pattern(OptionForm form) { return "=\"?" + form_pattern(form) + "\"?"; }

/// name or name=value.
std::string option_pattern(std::string_view name, OptionForm form) {
  return literal(name) + (form.empty() ? "" : value_pattern(form));
}

std::string mount_pattern(std::string_view fs_type) {
  std::string out;
  for (const auto& rule : allowed_mount_options(fs_type))
    out += (out.empty() ? "" : "|") + option_pattern(rule.name, rule.form);
  return "^(\\s*(" + out + ")\\s*(,|$))+$";
}

/// Over the arguments joined by blanks: "-m 0" and "-m0" are the same to mkfs.
std::string mkfs_pattern(std::string_view fs_type) {
  std::map<std::string, std::string> keys;  // flag -> its sub-options
  std::string out;
  const auto add = [&](const std::string& one) { out += (out.empty() ? "" : "|") + one; };
  for (const auto& rule : allowed_mkfs_options(fs_type)) {
    const std::string flag(rule.name.substr(0, 2));
    if (rule.name.size() > 3) {
      auto& words = keys[flag];
      words += (words.empty() ? "" : "|") + option_pattern(rule.name.substr(3), rule.form);
    } else if (flag == "-O") {
      add(literal(flag) + "\\s*(" + form_pattern(rule.form) + ",?)+");
    } else {
      add(literal(flag) + (rule.form.empty() ? "" : "\\s*" + form_pattern(rule.form)));
    }
  }
  for (const auto& [flag, words] : keys) add(literal(flag) + "\\s*((" + words + "),?)+");
  return "^(\\s*(" + out + ")(\\s+|$))*$";
}

std::string raw(const std::string& pattern) { return "r'" + pattern + "'"; }

}  // namespace

std::vector<CelRule> zfs_property_rules() {
  std::string names;
  std::vector<CelRule> out(1);
  for (const auto& rule : allowed_zfs_properties()) {
    const std::string name(rule.name);
    names += (names.empty() ? "'" : ", '") + name + "'";
    out.push_back({"!('" + name + "' in self) || self['" + name + "'].matches(" +
                       raw("^" + form_pattern(rule.form) + "$") + ")",
                   name + " " + form_text(rule.form)});
  }
  out[0] = {"self.all(name, name in [" + names + "])",
            "holds a property that is not accepted; accepted: " + names};
  return out;
}

std::vector<CelRule> filesystem_option_rules() {
  const std::string xfs = "has(self.fsType) && self.fsType == 'xfs'";
  const auto rule = [&](const std::string& list, const std::string& xfs_test, const std::string& ext4_test) {
    return "!has(self." + list + ") || (" + xfs + " ? " + xfs_test + " : " + ext4_test + ")";
  };
  const auto each = [](const std::string& pattern) {
    return "self.mountOptions.all(one, one.matches(" + raw(pattern) + "))";
  };
  const auto whole = [](const std::string& pattern) {
    return "self.mkfsOptions.join(' ').matches(" + raw(pattern) + ")";
  };
  return {{rule("mkfsOptions", whole(mkfs_pattern("xfs")), whole(mkfs_pattern("ext4"))),
           "mkfsOptions has an option that is not accepted for this file system; `pillarctl validate` says "
           "which"},
          {rule("mountOptions", each(mount_pattern("xfs")), each(mount_pattern("ext4"))),
           "mountOptions has an option that is not accepted for this file system; `pillarctl validate` says "
           "which"}};
}

}  // namespace pillar::crd
