#pragma once
// What a user may pass to mkfs and mount: the one allowlist per file system, option and form of its value. A
// class is checked against it when it is applied (crd/), a capability when a volume is made, and a node takes
// options apart with it (hostio/), so what one side accepts the other does too. Anything that could destroy
// data, weaken durability, reach another device or needs a kernel newer than 5.4 (reported-faults row G13) is
// not on it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pillar {

/// The accepted form of a value. Empty: no value; "a|b": one of the words; "#lo..hi": an integer; "%lo..hi":
/// a decimal; "$lo..hi": bytes with an optional k or m; "*lo..hi": such a size that is a power of two; "@N":
/// a label of up to N characters; "~": a SELinux context.
using OptionForm = std::string_view;

/// True when `text` has the form.
bool fits_form(OptionForm form, std::string_view text);
/// The form in words, for error messages: "takes an integer 1..300".
std::string form_text(OptionForm form);

/// What is wrong with one element of a list of options.
struct OptionProblem {
  std::size_t element = 0;  ///< index in the list
  std::string text;         ///< the option as it was written
  std::string why;          ///< follows the option in a sentence, with the remedy
};

/// How a mount option acts.
enum class MountRole : std::uint8_t {
  ignored,     ///< accepted, means nothing here
  access,      ///< ro, rw
  attribute,   ///< of the mount: nodev, noatime
  cleared,     ///< asks for what is the default anyway: only checked for contradictions
  filesystem,  ///< of the file system, with or without a value
};

/// One accepted mount option.
struct MountOption {
  std::string name;
  std::string value;  ///< without quotes; empty for an option without value
  MountRole role = MountRole::ignored;
};

/// One accepted mkfs option: "-b 4096" has no key, "-E stride=4" has the key "stride".
struct MkfsOption {
  std::string flag;
  std::string key;
  std::string value;     ///< for -O the feature itself: "quota", "^64bit"
  bool implied = false;  ///< the driver sets it always
};

/// What a list holds; `options` counts only when `problems` is empty.
template <class Option>
struct CheckedOptions {
  std::vector<Option> options;
  std::vector<OptionProblem> problems;
};

/// Takes mount options apart: one per element, or several separated by commas (not those inside double
/// quotes). Repeats are dropped, contradictions are problems.
CheckedOptions<MountOption> read_mount_options(std::string_view fs_type,
                                               const std::vector<std::string>& elements);

/// Takes mkfs options apart: a flag and its value are elements of their own ("-b", "4096"), or one ("-b
/// 4096",
/// "-b4096"); -E, -J, -O of ext4 and -b, -d, -i, -l, -m, -n, -s of xfs take lists separated by commas.
CheckedOptions<MkfsOption> read_mkfs_options(std::string_view fs_type,
                                             const std::vector<std::string>& elements);

/// One row of a list, as it is written: "commit" or "-E stride", with the form of its value and the row that
/// has to be given with it ("" for none).
struct AllowedOption {
  std::string_view name;
  OptionForm form;
  std::string_view needs;
};
/// Every mount option of the file system.
std::vector<AllowedOption> allowed_mount_options(std::string_view fs_type);
/// Every mkfs option of the file system; features of -O are forms of their flag.
std::vector<AllowedOption> allowed_mkfs_options(std::string_view fs_type);

}  // namespace pillar
