#include "hostio/helper_process.hpp"

#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <utility>

namespace pillar::hostio {
namespace {

using nlohmann::json;

std::map<std::string, HelperFunction>& registry() {
  static std::map<std::string, HelperFunction> verbs;
  return verbs;
}

json encode(const Result<json>& result) {
  if (result) return json{{"ok", true}, {"value", *result}};
  const Error& e = result.error();
  return json{{"ok", false},
              {"code", static_cast<int>(e.code)},
              {"reason", std::string(to_string(e.reason))},
              {"message", e.message},
              {"details", e.details}};
}

Result<json> decode(const std::string& verb, const std::string& text) {
  const json document = json::parse(text, nullptr, false);
  const auto malformed = [&] {
    return fail(Reason::internal,
                "helper " + verb + " answered with something else than a result: " + text.substr(0, 200));
  };
  if (!document.is_object() || !document.contains("ok") || !document["ok"].is_boolean()) return malformed();
  try {
    if (document["ok"].get<bool>()) return document.at("value");
    return tl::unexpected(Error{static_cast<Code>(document.at("code").get<int>()),
                                reason_from_string(document.at("reason").get<std::string>()),
                                document.at("message").get<std::string>(),
                                document.at("details").get<std::map<std::string, std::string>>()});
  } catch (const json::exception&) {
    return malformed();
  }
}

Result<json> call_verb(const std::string& verb, const std::vector<std::string>& args) {
  const auto it = registry().find(verb);
  if (it == registry().end()) return fail(Reason::unsupported, "unknown helper " + verb);
  try {
    return it->second(args);
  } catch (const std::exception& e) {
    return fail(Reason::internal, "helper " + verb + ": " + e.what());
  }
}

}  // namespace

void register_helper(std::string verb, HelperFunction function) {
  registry()[std::move(verb)] = std::move(function);
}

std::optional<int> run_helper_main(int argc, const char* const* argv) {
  if (argc < 3 || std::string_view(argv[1]) != "--helper") return std::nullopt;
  // Without its caller nobody would use the result, and a mount that shows up later would be nobody's.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<std::string> args(argv + 3, argv + argc);
  // Invalid UTF-8 (a path from mountinfo) must not end the helper: it is replaced.
  const std::string text =
      encode(call_verb(argv[2], args)).dump(-1, ' ', false, json::error_handler_t::replace);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return std::fflush(stdout) == 0 && written ? 0 : 1;
}

HelperRunner::HelperRunner(CommandRunner& runner, std::string executable)
    : runner_(runner), executable_(std::move(executable)) {}

Result<json> HelperRunner::run(const std::string& verb, const std::vector<std::string>& args,
                               Deadline deadline) {
  Command command{executable_, {"--helper", verb}, deadline};
  command.args.insert(command.args.end(), args.begin(), args.end());
  const Result<CommandResult> result = run_checked(runner_, command);
  if (!result) return tl::unexpected(with_context(result.error(), "helper " + verb));
  return decode(verb, result->out);
}

}  // namespace pillar::hostio
