#pragma once
// Decisions about one volume that only an operator can take: going on with a record that was restored to the
// past, and giving a volume its export specification. Each is one compare-and-swap; the controller carries it
// out.

#include <string>

#include "crd/store.hpp"
#include "messages/error.hpp"
#include "tools/pillarctl/cli.hpp"

namespace pillar::pillarctl {

/// `fence accept-rollback`: the record goes on one generation above what the agent holds. Refused unless the
/// record is of that uid, shows FenceAhead, and the generation is above its own. Yields what to tell the
/// operator.
Result<std::string> accept_rollback(crd::Store& store, const AcceptRollback& asked);

/// `export-spec set`: records where and for whom the volume is exported. Refused when the record has one, is
/// being deleted or was never completely created.
Result<std::string> set_export_spec(crd::Store& store, const SetExportSpec& asked);

}  // namespace pillar::pillarctl
