#pragma once
// One-line kernel attribute files of sysfs and proc.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"

namespace pillar::hostio {

/// Content of the attribute without trailing blanks and newlines; nullopt when it cannot be read (the object
/// went away, or the kernel does not have the attribute).
std::optional<std::string> read_attribute(const std::string& path);

/// The attribute as an unsigned decimal number.
std::optional<unsigned long long> read_attribute_number(const std::string& path);

/// Writes `value` in one write(2); 0 or the errno, which callers map.
int write_attribute(const std::string& path, std::string_view value);

/// Names in a directory, sorted, without "." and ".."; empty when it cannot be read.
std::vector<std::string> list_directory(const std::string& path);

/// Lower-case ASCII.
std::string lower(std::string_view text);

/// `text` without leading and trailing white space.
std::string_view trim(std::string_view text);

}  // namespace pillar::hostio
