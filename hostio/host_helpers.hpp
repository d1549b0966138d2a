#pragma once
// The verbs of the node's helper process: every kernel call that can hang for ever on a dead device runs as
// `/proc/self/exe --helper VERB` with a deadline, so that a stuck call costs one process and never a thread
// of the pool (reported-faults rows E07, I01, I03).

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

class HelperRunner;

/// Runs one verb with its JSON input and returns its JSON answer, or the error the verb returned.
/// COMMAND_TIMEOUT when the deadline passed; the process was killed then, and is remembered as wedged when it
/// does not die.
using HelperCall = std::function<Result<nlohmann::json>(std::string_view verb, const nlohmann::json& input,
                                                        Deadline deadline)>;

/// The body of a verb; runs inside the helper process.
using HelperBody = Result<nlohmann::json> (*)(const nlohmann::json& input);

/// One verb.
struct HelperVerb {
  std::string_view name;
  HelperBody body;
};

/// Every verb: mount, umount, statfs, syncfs, probe, clear-signatures, open-check, write-check, list-check,
/// device-read-only, nvme-connect, nvme-delete.
const std::vector<HelperVerb>& host_helper_verbs();

/// Registers the verbs with helper_process.hpp; call it before run_helper_main.
void register_host_helpers();

/// A HelperCall that runs the verbs as child processes. `runner` must outlive it.
HelperCall helper_call(HelperRunner& runner);

/// Runs a verb in the calling process: for tests, and for what the helper process itself does.
Result<nlohmann::json> run_host_verb_here(std::string_view verb, const nlohmann::json& input,
                                          Deadline deadline);

}  // namespace pillar::hostio
