#include "actors/agent/volume_ops.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace pillar::agent {
namespace {

namespace nvmet = hostio::nvmet;

Token token_of(const v1::FencingToken& token) { return {token.volume_uid(), token.generation()}; }

Result<AgentVolumeId> target(const Host& host, const v1::VolumeRef& ref) {
  auto volume = AgentVolumeId::parse(ref.agent_volume_id());
  if (!volume) return volume;
  if (auto served = host.check_pool(*volume, ref.backend_type()); !served)
    return tl::unexpected(served.error());
  return volume;
}

Result<void> check_not_drained(const Host& host) {
  if (!host.drained()) return {};
  return fail(Reason::drained,
              "this agent is drained and grants nothing new; undrain it or use another agent");
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_uuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !is_hex(text.substr(i, 1))) return false;
  }
  return true;
}

/// A checked ExportSpec.
struct ExportWish {
  Endpoint endpoint;
  bool acl_enabled = true;
  ExportIdentity identity;
};

/// Refuses an NQN that is not ours or that another volume's export uses.
Result<void> check_nqn(const Host& host, const AgentVolumeId& volume, const std::string& nqn) {
  if (!is_our_nqn(nqn))
    return fail(Reason::invalid_argument, "volume " + volume.str() + ": subsystem name '" + nqn +
                                              "' is not one of this driver (" + std::string(k_nqn_prefix) +
                                              "...)");
  const auto owner = host.volume_of_nqn(nqn);
  if (owner && *owner != volume)
    return fail(Reason::invalid_argument,
                "volume " + volume.str() + ": subsystem name " + nqn + " belongs to volume " + owner->str());
  return {};
}

Result<ExportWish> parse_spec(const Host& host, const AgentVolumeId& volume, const v1::ExportSpec& spec) {
  const auto bad = [&](const std::string& why) {
    return fail(Reason::invalid_argument, "volume " + volume.str() + ": export spec: " + why);
  };
  auto address = IpAddress::parse(spec.bind_address());
  if (!address) return bad(address.error().message);
  if (auto allowed = host.check_bind_address(*address); !allowed) return tl::unexpected(allowed.error());
  if (spec.port() == 0 || spec.port() > 65535)
    return bad("port " + std::to_string(spec.port()) + " is not 1..65535");
  if (auto ours = check_nqn(host, volume, spec.nqn()); !ours) return tl::unexpected(ours.error());
  ExportWish wish;
  wish.endpoint = {std::move(*address), static_cast<std::uint16_t>(spec.port()), spec.in_capsule_data_size()};
  wish.acl_enabled = spec.acl_enabled();
  wish.identity = export_identity_of_nqn(spec.nqn());
  if (!spec.namespace_uuid().empty()) {
    if (!is_uuid(spec.namespace_uuid()))
      return bad("namespace uuid '" + spec.namespace_uuid() + "' is not a lower-case dashed uuid");
    wish.identity.namespace_uuid = wish.identity.nguid = spec.namespace_uuid();
  }
  if (!spec.serial().empty()) {
    if (spec.serial().size() != 20 || !is_hex(spec.serial()))
      return bad("serial '" + spec.serial() + "' is not 20 lower-case hex digits");
    wish.identity.serial = spec.serial();
  }
  return wish;
}

nvmet::DesiredExport desired_export(const Host& host, const AgentVolumeId& volume, const ExportWish& wish) {
  nvmet::DesiredExport desired;
  desired.nqn = wish.identity.nqn;
  desired.serial = wish.identity.serial;
  desired.uuid = wish.identity.namespace_uuid;
  desired.nguid = wish.identity.nguid;
  desired.device.path = host.device_path(volume);
  desired.access.acl_enabled = wish.acl_enabled;
  return desired;
}

ExportRecord record_of(const AgentVolumeId& volume, const Token& token, const ExportWish& wish,
                       std::vector<RecordedInitiator> initiators) {
  ExportRecord record;
  record.volume = volume;
  record.token = token;
  record.bind_address = wish.endpoint.address.text;
  record.port = wish.endpoint.port;
  record.acl_enabled = wish.acl_enabled;
  record.in_capsule_data_size = wish.endpoint.inline_data_size;
  record.nqn = wish.identity.nqn;
  record.namespace_uuid = wish.identity.namespace_uuid;
  record.serial = wish.identity.serial;
  std::sort(initiators.begin(), initiators.end(),
            [](const auto& a, const auto& b) { return a.host_nqn < b.host_nqn; });
  record.initiators = std::move(initiators);
  return record;
}

bool is_open(const nvmet::LiveSubsystem& live) {
  return live.enabled() || !live.ports.empty() || !live.hosts.empty() || live.allow_any_host;
}

/// A request that passed admission.
struct Admitted {
  Verdict verdict = Verdict::run;
  Mark mark;                       ///< in force from now on
  std::optional<Token> before;     ///< life and generation of the mark that was stored
  std::optional<Error> undurable;  ///< the mark could not be written; only a revoke gets here
};

Error undurable_error(const AgentVolumeId& volume, const Error& cause) {
  return Error{info(Reason::state_unwritable).code, Reason::state_unwritable,
               "volume " + volume.str() +
                   ": access was taken away, but the fencing mark could not be written (" + cause.message +
                   "); repair the state directory and repeat the call",
               cause.details};
}

Task<Result<Admitted>> admit_durably(HostPtr host, AgentVolumeId volume, Token token, OpClass cls,
                                     std::string op) {
  auto stored = co_await host->read_mark(volume);
  if (!stored) {
    host->count_decision(op, "mark_corrupt");
    co_return tl::unexpected(stored.error());
  }
  Admission admission = admit(volume, stored->mark, stored->seeded, token, cls);
  if (admission.verdict != Verdict::refused && !stored->mark) {
    // An object of ours without a mark means that the mark was lost (docs/fencing.md section 2).
    auto object = co_await host->find(volume);
    if (!object && object.error().reason != Reason::not_owned) co_return tl::unexpected(object.error());
    if (object && *object) admission = admit(volume, stored->mark, false, token, cls);
  }
  host->count_decision(op, decision_label(admission));
  if (admission.verdict == Verdict::refused) co_return tl::unexpected(admission.refusal);
  Admitted out;
  out.verdict = admission.verdict;
  if (stored->mark) out.before = Token{stored->mark->uid, stored->mark->generation};
  if (!admission.next && stored->uncertain) admission.next = stored->mark;
  out.mark = admission.next ? *admission.next : *stored->mark;
  if (!admission.next) co_return out;
  auto written = co_await host->write_mark(out.mark);
  if (written) {
    out.mark = std::move(*written);
    co_return out;
  }
  // Taking access away is safe under any mark, so what the stored one admits still runs; the answer stays an
  // error, because a delayed older grant would be admitted again.
  if (cls == OpClass::revoke && out.verdict == Verdict::run && written.error().reason != Reason::conflict) {
    out.undurable = undurable_error(volume, written.error());
    co_return out;
  }
  co_return tl::unexpected(written.error());
}

Task<Result<void>> carry_out(HostPtr host, std::string nqn, nvmet::ExportPlan plan, Endpoint endpoint) {
  if (!plan.close.empty()) {
    auto closed = co_await host->configure(nqn, plan.close);
    if (!closed) co_return closed;
  }
  if (!plan.barrier.empty()) {
    auto ended = co_await host->barrier(nqn, plan.barrier);
    if (!ended) co_return ended;
  }
  if (!plan.prepare.empty()) {
    auto prepared = co_await host->configure(nqn, plan.prepare);
    if (!prepared) co_return prepared;
  }
  if (!plan.open.empty()) {
    auto opened = co_await host->open(endpoint, nqn, plan.open);
    if (!opened) co_return opened;
  }
  co_return Result<void>{};
}

/// carry_out for plans that only take away or relink: their `open` part goes to ports the export was linked
/// to.
Task<Result<void>> carry_out_closing(HostPtr host, std::string nqn, nvmet::ExportPlan plan) {
  nvmet::Plan reopen = std::exchange(plan.open, {});
  Endpoint nowhere;
  auto done = co_await carry_out(host, nqn, std::move(plan), std::move(nowhere));
  if (!done || reopen.empty()) co_return done;
  co_return co_await host->configure(nqn, reopen);
}

/// Who keeps access, as a new record has to say it. A record counts only when it is as new as the mark was:
/// an older one may name hosts whose access was taken since (its rewriting failed or was cut short), and
/// then configfs says who is in.
std::vector<RecordedInitiator> present_initiators(const std::optional<ExportRecord>& record,
                                                  const Admitted& admitted,
                                                  const std::set<std::string>& live_hosts) {
  const bool same_life = record && record->token.volume_uid == admitted.mark.uid;
  const bool current = same_life && admitted.before &&
                       admitted.before->volume_uid == record->token.volume_uid &&
                       admitted.before->generation == record->token.generation;
  if (current) return record->initiators;
  std::vector<RecordedInitiator> initiators;
  for (const std::string& host_nqn : live_hosts) {
    RecordedInitiator entry{host_nqn, false};
    if (same_life)
      for (const RecordedInitiator& known : record->initiators)
        if (known.host_nqn == host_nqn) entry = known;
    initiators.push_back(std::move(entry));
  }
  return initiators;
}

std::set<std::string> hosts_of(const std::optional<nvmet::LiveSubsystem>& live) {
  return live ? live->host_nqns() : std::set<std::string>{};
}

/// Keeps a record in step with the mark after an operation that changed neither spec nor initiators. Without
/// a look at configfs (`live` none) a record that was outdated before stays so.
Task<Result<void>> refresh_record(HostPtr host, AgentVolumeId volume, Admitted admitted,
                                  std::optional<nvmet::LiveSubsystem> live) {
  auto record = co_await host->read_record(volume);
  if (!record) co_return tl::unexpected(record.error());
  const Mark& mark = admitted.mark;
  if (!*record || (*record)->token.volume_uid != mark.uid) co_return Result<void>{};
  if ((*record)->token.generation == mark.generation) co_return Result<void>{};
  const bool current = admitted.before && admitted.before->generation == (*record)->token.generation;
  if (!current && !live) co_return Result<void>{};
  StateStore::RecordChange change{volume, **record};
  change.record->token = {mark.uid, mark.generation};
  change.record->initiators = present_initiators(*record, admitted, hosts_of(live));
  co_return co_await host->write_record(change);
}

Result<void> check_settings(const v1::CreateVolumeRequest& request) {
  const std::string& mode = request.settings().lvm().provisioning_mode();
  if (mode.empty() || mode == "linear") return {};
  return fail(Reason::invalid_argument, "provisioning mode '" + mode + "' is not supported; use linear");
}

}  // namespace

Task<Result<v1::CreateVolumeResponse>> create_volume(HostPtr host, Shared<v1::CreateVolumeRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  if (auto ok = check_settings(*request); !ok) co_return tl::unexpected(ok.error());
  if (auto ok = check_not_drained(*host); !ok) co_return tl::unexpected(ok.error());
  const Token token = token_of(request->token());
  auto admitted = co_await admit_durably(host, *volume, token, OpClass::grant, "create");
  if (!admitted) co_return tl::unexpected(admitted.error());
  const hostio::SizeRange range{request->required_bytes(), request->limit_bytes()};
  auto made = co_await host->create(*volume, token.volume_uid, range);
  if (!made) co_return tl::unexpected(made.error());
  v1::CreateVolumeResponse response;
  response.set_capacity_bytes(made->size_bytes);
  response.set_device_path(host->device_path(*volume));
  co_return response;
}

Task<Result<v1::ExpandVolumeResponse>> expand_volume(HostPtr host, Shared<v1::ExpandVolumeRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  const std::string nqn = request->nqn();
  if (!nqn.empty())
    if (auto ok = check_nqn(*host, *volume, nqn); !ok) co_return tl::unexpected(ok.error());
  const Token token = token_of(request->token());
  auto admitted = co_await admit_durably(host, *volume, token, OpClass::grant, "expand");
  if (!admitted) co_return tl::unexpected(admitted.error());
  const hostio::SizeRange range{request->required_bytes(), request->limit_bytes()};
  auto grown = co_await host->extend(*volume, token.volume_uid, range);
  if (!grown) co_return tl::unexpected(grown.error());
  std::optional<nvmet::LiveSubsystem> seen;
  if (!nqn.empty()) {
    // Also when the size was right already: an earlier call may have ended between both steps (row L09).
    auto live = co_await host->read_export(nqn);
    if (!live) co_return tl::unexpected(live.error());
    seen = *live;
    nvmet::Plan plan = *live ? nvmet::plan_revalidate(**live) : nvmet::Plan{};
    if (!plan.empty()) {
      auto told = co_await host->configure(nqn, plan);
      if (!told) co_return tl::unexpected(told.error());
    }
  }
  auto kept = co_await refresh_record(host, *volume, *admitted, std::move(seen));
  if (!kept) co_return tl::unexpected(kept.error());
  v1::ExpandVolumeResponse response;
  response.set_capacity_bytes(grown->size_bytes);
  co_return response;
}

Task<Result<v1::ExportVolumeResponse>> export_volume(HostPtr host, Shared<v1::ExportVolumeRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  auto wish = parse_spec(*host, *volume, request->spec());
  if (!wish) co_return tl::unexpected(wish.error());
  if (auto ok = check_not_drained(*host); !ok) co_return tl::unexpected(ok.error());
  const Token token = token_of(request->token());
  auto admitted = co_await admit_durably(host, *volume, token, OpClass::grant, "export");
  if (!admitted) co_return tl::unexpected(admitted.error());
  auto device = co_await host->activate(*volume, token.volume_uid);
  if (!device) co_return tl::unexpected(device.error());
  auto live = co_await host->read_export(wish->identity.nqn);
  if (!live) co_return tl::unexpected(live.error());
  nvmet::DesiredExport desired = desired_export(*host, *volume, *wish);
  desired.device = {device->path, device->number};
  nvmet::ExportPlan plan = nvmet::plan_prepare(desired, *live);
  auto done = co_await carry_out(host, desired.nqn, std::move(plan), wish->endpoint);
  if (!done) co_return tl::unexpected(done.error());
  auto record = co_await host->read_record(*volume);
  if (!record) co_return tl::unexpected(record.error());
  std::vector<RecordedInitiator> initiators = present_initiators(*record, *admitted, hosts_of(*live));
  const StateStore::RecordChange change{*volume, record_of(*volume, token, *wish, std::move(initiators))};
  auto kept = co_await host->write_record(change);
  if (!kept) co_return tl::unexpected(kept.error());
  v1::ExportVolumeResponse response;
  response.set_target_id(desired.nqn);
  response.set_address(wish->endpoint.address.text);
  response.set_port(wish->endpoint.port);
  co_return response;
}

namespace {

Result<void> check_allow(const Host& host, const AgentVolumeId& volume, const v1::Initiator& initiator) {
  if (!is_valid_nqn(initiator.host_nqn()))
    return fail(Reason::invalid_argument, "volume " + volume.str() + ": initiator '" + initiator.host_nqn() +
                                              "' is not a valid host NQN");
  if (auto ok = check_not_drained(host); !ok) return ok;
  if (host.gated())
    return fail(Reason::restore_pending,
                "volume " + volume.str() +
                    ": exports are being restored; ports open with the controller's first complete list");
  return {};
}

std::vector<RecordedInitiator> with_initiator(std::vector<RecordedInitiator> initiators,
                                              const v1::Initiator& initiator) {
  std::erase_if(initiators, [&](const auto& entry) { return entry.host_nqn == initiator.host_nqn(); });
  initiators.push_back({initiator.host_nqn(), initiator.readonly()});
  return initiators;
}

}  // namespace

Task<Result<v1::AllowInitiatorResponse>> allow_initiator(HostPtr host,
                                                         Shared<v1::AllowInitiatorRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  auto wish = parse_spec(*host, *volume, request->spec());
  if (!wish) co_return tl::unexpected(wish.error());
  if (auto ok = check_allow(*host, *volume, request->initiator()); !ok) co_return tl::unexpected(ok.error());
  const Token token = token_of(request->token());
  auto admitted = co_await admit_durably(host, *volume, token, OpClass::grant, "allow");
  if (!admitted) co_return tl::unexpected(admitted.error());
  auto device = co_await host->activate(*volume, token.volume_uid);
  if (!device) co_return tl::unexpected(device.error());
  auto port = co_await host->port_id(wish->endpoint);
  if (!port) co_return tl::unexpected(port.error());
  auto live = co_await host->read_export(wish->identity.nqn);
  if (!live) co_return tl::unexpected(live.error());
  nvmet::DesiredExport desired = desired_export(*host, *volume, *wish);
  desired.device = {device->path, device->number};
  desired.access.published = true;
  desired.access.port_id = *port;
  nvmet::ExportPlan plan = nvmet::plan_allow(desired, request->initiator().host_nqn(), *live);
  auto done = co_await carry_out(host, desired.nqn, std::move(plan), wish->endpoint);
  if (!done) co_return tl::unexpected(done.error());
  auto record = co_await host->read_record(*volume);
  if (!record) co_return tl::unexpected(record.error());
  std::vector<RecordedInitiator> initiators = present_initiators(*record, *admitted, hosts_of(*live));
  initiators = with_initiator(std::move(initiators), request->initiator());
  const StateStore::RecordChange change{*volume, record_of(*volume, token, *wish, std::move(initiators))};
  auto kept = co_await host->write_record(change);
  if (!kept) co_return tl::unexpected(kept.error());
  co_return v1::AllowInitiatorResponse{};
}

namespace {

/// What ending one initiator's access takes.
enum class Cut : std::uint8_t {
  nothing,  ///< it ended before, or (acl off) cannot be told from the others'
  recycle,  ///< others stay: all sessions are torn down and only theirs come back
  close,    ///< nobody stays
};

std::set<std::string> recorded_hosts(const std::optional<ExportRecord>& record) {
  std::set<std::string> hosts;
  if (record)
    for (const auto& initiator : record->initiators) hosts.insert(initiator.host_nqn);
  return hosts;
}

/// Decides from live state, the record and the mark as it was before this request. A host that is no longer
/// in the list may still have a session, so its absence counts only when a record as new as the mark confirms
/// it.
Cut choose_cut(const std::string& host_nqn, const nvmet::LiveSubsystem& live,
               const std::optional<ExportRecord>& record, const std::optional<Token>& before) {
  if (host_nqn.empty()) return Cut::close;
  std::set<std::string> rest = live.allow_any_host ? recorded_hosts(record) : live.host_nqns();
  const bool listed = rest.erase(host_nqn) > 0;
  if (rest.empty()) return Cut::close;
  if (live.allow_any_host) return Cut::nothing;
  const bool confirmed = record && before && record->token.volume_uid == before->volume_uid &&
                         record->token.generation == before->generation &&
                         recorded_hosts(record).count(host_nqn) == 0;
  return listed || !confirmed ? Cut::recycle : Cut::nothing;
}

/// The port an export goes back to when an earlier recycling stopped between unlink and relink. None while
/// ports are gated: then the restore links it.
Task<Result<std::optional<std::uint16_t>>> port_of_record(HostPtr host, std::optional<ExportRecord> record) {
  if (!record || host->gated()) co_return std::nullopt;
  auto address = IpAddress::parse(record->bind_address);
  if (!address) co_return std::nullopt;
  const Endpoint endpoint{*address, record->port, record->in_capsule_data_size};
  auto id = co_await host->port_id(endpoint);
  if (!id) co_return tl::unexpected(id.error());
  co_return *id;
}

Task<Result<void>> recycle_sessions(HostPtr host, nvmet::LiveSubsystem live,
                                    std::optional<ExportRecord> record, std::string host_nqn) {
  nvmet::DesiredExport desired;
  desired.nqn = live.nqn;
  bool relink = true;
  if (live.ports.empty()) {
    auto port = co_await port_of_record(host, record);
    if (!port) co_return tl::unexpected(port.error());
    relink = port->has_value();
    desired.access.port_id = port->value_or(0);
  }
  nvmet::ExportPlan plan = nvmet::plan_deny(desired, host_nqn, live);
  if (!relink) plan.open.clear();
  co_return co_await carry_out_closing(host, live.nqn, std::move(plan));
}

Task<Result<void>> end_access(HostPtr host, nvmet::LiveSubsystem live, Cut cut,
                              std::optional<ExportRecord> record, std::string host_nqn) {
  if (cut == Cut::nothing) co_return Result<void>{};
  if (cut == Cut::recycle) co_return co_await recycle_sessions(host, live, record, host_nqn);
  nvmet::ExportPlan plan = nvmet::plan_close(live);
  co_return co_await carry_out_closing(host, live.nqn, std::move(plan));
}

/// Proves from configfs that the access is gone; the hosts that remain.
Task<Result<std::set<std::string>>> verify_ended(HostPtr host, std::string nqn, std::string host_nqn) {
  auto live = co_await host->read_export(nqn);
  if (!live) co_return tl::unexpected(live.error());
  if (!*live) co_return std::set<std::string>{};
  std::set<std::string> rest = (*live)->host_nqns();
  const bool still_open = host_nqn.empty() ? is_open(**live) : rest.count(host_nqn) > 0;
  if (still_open)
    co_return fail(Reason::access_not_ended,
                   nqn +
                       " is still open although it was closed; something else on this "
                       "host changes nvmet, stop it and repeat the call");
  co_return rest;
}

/// Drops `host_nqn` (empty: everyone) from the record; `rest` are the hosts that are still let in. A record
/// older than a durable mark is used by no restore and carried into no later record, so failing to rewrite
/// such a one does not make the answer wrong.
Task<Result<void>> forget_initiator(HostPtr host, AgentVolumeId volume, Admitted admitted,
                                    std::string host_nqn, std::set<std::string> rest) {
  auto record = co_await host->read_record(volume);
  if (!record) co_return tl::unexpected(record.error());
  if (!*record) co_return Result<void>{};
  StateStore::RecordChange change{volume, **record};
  change.record->token = {admitted.mark.uid, admitted.mark.generation};
  change.record->initiators = present_initiators(*record, admitted, rest);
  if ((*record)->token.volume_uid != admitted.mark.uid) change.record.reset();
  if (change.record)
    std::erase_if(change.record->initiators,
                  [&](const auto& entry) { return host_nqn.empty() || entry.host_nqn == host_nqn; });
  auto written = co_await host->write_record(change);
  const bool outdated = (*record)->token.volume_uid != admitted.mark.uid ||
                        (*record)->token.generation < admitted.mark.generation;
  // Without a durable mark the answer is an error anyway, and it says more than this one.
  if (!written && !outdated && !admitted.undurable) co_return written;
  co_return Result<void>{};
}

/// Ends all access to `nqn` and removes the subsystem.
Task<Result<void>> remove_export(HostPtr host, std::string nqn) {
  auto live = co_await host->read_export(nqn);
  if (!live) co_return tl::unexpected(live.error());
  if (!*live) co_return Result<void>{};
  nvmet::ExportPlan plan = nvmet::plan_remove(**live);
  co_return co_await carry_out_closing(host, nqn, std::move(plan));
}

Result<void> check_export_known(const AgentVolumeId& volume, const std::string& nqn) {
  if (!nqn.empty()) return {};
  return fail(
      Reason::invalid_argument,
      "volume " + volume.str() + ": the request names no subsystem and none is recorded; give the nqn");
}

/// The given NQN, or the recorded one when the request names none.
Task<Result<std::string>> export_of(HostPtr host, AgentVolumeId volume, std::string nqn) {
  if (nqn.empty()) {
    auto record = co_await host->read_record(volume);
    if (!record) co_return tl::unexpected(record.error());
    if (*record) nqn = (*record)->nqn;
    co_return nqn;
  }
  if (auto ok = check_nqn(*host, volume, nqn); !ok) co_return tl::unexpected(ok.error());
  co_return nqn;
}

}  // namespace

Task<Result<v1::DenyInitiatorResponse>> deny_initiator(HostPtr host,
                                                       Shared<v1::DenyInitiatorRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  const std::string who = request->host_nqn();
  auto nqn = co_await export_of(host, *volume, request->nqn());
  if (!nqn) co_return tl::unexpected(nqn.error());
  if (auto ok = check_export_known(*volume, *nqn); !ok) co_return tl::unexpected(ok.error());
  auto admitted = co_await admit_durably(host, *volume, token_of(request->token()), OpClass::revoke, "deny");
  if (!admitted) co_return tl::unexpected(admitted.error());
  v1::DenyInitiatorResponse response;
  if (admitted->verdict == Verdict::already_done) co_return response;
  auto live = co_await host->read_export(*nqn);
  if (!live) co_return tl::unexpected(live.error());
  std::set<std::string> remaining;
  if (*live) {
    auto record = co_await host->read_record(*volume);
    if (!record) co_return tl::unexpected(record.error());
    const Cut cut = choose_cut(who, **live, *record, admitted->before);
    auto ended = co_await end_access(host, **live, cut, *record, who);
    if (!ended) co_return tl::unexpected(ended.error());
    std::string gone = cut == Cut::close ? std::string() : who;
    auto rest = co_await verify_ended(host, *nqn, std::move(gone));
    if (!rest) co_return tl::unexpected(rest.error());
    for (const std::string& host_nqn : *rest) response.add_remaining_host_nqns(host_nqn);
    remaining = std::move(*rest);
  }
  auto kept = co_await forget_initiator(host, *volume, *admitted, who, std::move(remaining));
  if (!kept) co_return tl::unexpected(kept.error());
  if (admitted->undurable) co_return tl::unexpected(*admitted->undurable);
  co_return response;
}

Task<Result<v1::UnexportVolumeResponse>> unexport_volume(HostPtr host,
                                                         Shared<v1::UnexportVolumeRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  auto nqn = co_await export_of(host, *volume, request->nqn());
  if (!nqn) co_return tl::unexpected(nqn.error());
  if (auto ok = check_export_known(*volume, *nqn); !ok) co_return tl::unexpected(ok.error());
  auto admitted =
      co_await admit_durably(host, *volume, token_of(request->token()), OpClass::revoke, "unexport");
  if (!admitted) co_return tl::unexpected(admitted.error());
  if (admitted->verdict == Verdict::already_done) co_return v1::UnexportVolumeResponse{};
  auto removed = co_await remove_export(host, *nqn);
  if (!removed) co_return tl::unexpected(removed.error());
  std::set<std::string> nobody;
  auto kept = co_await forget_initiator(host, *volume, *admitted, "", std::move(nobody));
  if (!kept) co_return tl::unexpected(kept.error());
  const StateStore::RecordChange drop{*volume, std::nullopt};
  if (!admitted->undurable) {
    auto dropped = co_await host->write_record(drop);
    if (!dropped) co_return tl::unexpected(dropped.error());
  }
  if (admitted->undurable) co_return tl::unexpected(*admitted->undurable);
  co_return v1::UnexportVolumeResponse{};
}

Task<Result<v1::DeleteVolumeResponse>> delete_volume(HostPtr host, Shared<v1::DeleteVolumeRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  const Token token = token_of(request->token());
  auto nqn = co_await export_of(host, *volume, request->nqn());
  if (!nqn) co_return tl::unexpected(nqn.error());
  auto admitted = co_await admit_durably(host, *volume, token, OpClass::destroy, "delete");
  if (!admitted) co_return tl::unexpected(admitted.error());
  if (admitted->verdict == Verdict::already_done) co_return v1::DeleteVolumeResponse{};
  if (!nqn->empty()) {
    auto unexported = co_await remove_export(host, *nqn);
    if (!unexported) co_return tl::unexpected(unexported.error());
  }
  const StateStore::RecordChange drop{*volume, std::nullopt};
  auto dropped = co_await host->write_record(drop);
  if (!dropped) co_return tl::unexpected(dropped.error());
  auto removed = co_await host->remove(*volume, token.volume_uid);
  // An object under this name that is not of this life is not this volume: this one is gone.
  if (!removed && removed.error().reason != Reason::not_owned) co_return tl::unexpected(removed.error());
  const Mark tombstone = ended(admitted->mark);
  auto written = co_await host->write_mark(tombstone);
  if (!written) co_return tl::unexpected(written.error());
  co_return v1::DeleteVolumeResponse{};
}

Task<Result<v1::AdoptLifecycleResponse>> adopt_lifecycle(HostPtr host,
                                                         Shared<v1::AdoptLifecycleRequest> request) {
  auto volume = target(*host, request->volume());
  if (!volume) co_return tl::unexpected(volume.error());
  const Token token = token_of(request->token());
  auto stored = co_await host->read_mark(*volume);
  if (!stored) co_return tl::unexpected(stored.error());
  auto next = adopt(*volume, stored->mark, token, request->old_uid(), request->old_generation());
  host->count_decision("adopt", next ? "run" : "refused");
  if (!next) co_return tl::unexpected(next.error());
  auto nqn = co_await export_of(host, *volume, "");
  if (!nqn) co_return tl::unexpected(nqn.error());
  if (!nqn->empty()) {
    auto live = co_await host->read_export(*nqn);
    if (!live) co_return tl::unexpected(live.error());
    if (*live && is_open(**live))
      co_return fail(Reason::still_published, "volume " + volume->str() + " is still open to " +
                                                  std::to_string((*live)->hosts.size()) +
                                                  " hosts; end their access before adopting it");
  }
  if (*next) {
    auto written = co_await host->write_mark(**next);
    if (!written) co_return tl::unexpected(written.error());
  }
  auto retagged = co_await host->change_owner(*volume, request->old_uid(), token.volume_uid);
  // The new record may well be about to create the object.
  if (!retagged && retagged.error().reason != Reason::not_found) co_return tl::unexpected(retagged.error());
  const StateStore::RecordChange drop{*volume, std::nullopt};
  auto dropped = co_await host->write_record(drop);
  if (!dropped) co_return tl::unexpected(dropped.error());
  co_return v1::AdoptLifecycleResponse{};
}

namespace {

Task<Result<ReconcileOutcome>> close_all_access(HostPtr host, std::string nqn) {
  ReconcileOutcome outcome;
  auto live = co_await host->read_export(nqn);
  if (!live) co_return tl::unexpected(live.error());
  if (!*live || !is_open(**live)) co_return outcome;
  nvmet::ExportPlan plan = nvmet::plan_close(**live);
  auto closed = co_await carry_out_closing(host, nqn, std::move(plan));
  if (!closed) co_return tl::unexpected(closed.error());
  auto rest = co_await verify_ended(host, nqn, "");
  if (!rest) co_return tl::unexpected(rest.error());
  outcome.changed = true;
  co_return outcome;
}

/// The volume has a record but no export: whatever is open is closed.
Task<Result<ReconcileOutcome>> reconcile_unexported(HostPtr host, AgentVolumeId volume, Token token) {
  auto admitted = co_await admit_durably(host, volume, token, OpClass::revoke, "reconcile");
  if (!admitted) co_return tl::unexpected(admitted.error());
  auto nqn = co_await export_of(host, volume, "");
  if (!nqn) co_return tl::unexpected(nqn.error());
  ReconcileOutcome outcome;
  if (admitted->verdict == Verdict::already_done || nqn->empty()) co_return outcome;
  auto closed = co_await close_all_access(host, *nqn);
  if (!closed) co_return closed;
  std::set<std::string> nobody;
  auto kept = co_await forget_initiator(host, volume, *admitted, "", std::move(nobody));
  if (!kept) co_return tl::unexpected(kept.error());
  if (admitted->undurable) co_return tl::unexpected(*admitted->undurable);
  co_return closed;
}

std::vector<RecordedInitiator> initiators_of(const v1::DesiredVolume& desired) {
  std::vector<RecordedInitiator> out;
  for (const auto& initiator : desired.initiators())
    out.push_back({initiator.host_nqn(), initiator.readonly()});
  return out;
}

Result<void> check_initiators(const AgentVolumeId& volume, const v1::DesiredVolume& desired) {
  for (const auto& initiator : desired.initiators())
    if (!is_valid_nqn(initiator.host_nqn()))
      return fail(Reason::invalid_argument, "volume " + volume.str() + ": initiator '" +
                                                initiator.host_nqn() + "' is not a valid host NQN");
  return {};
}

/// A published export whose namespace is not serving the right device yet needs the device proved first.
bool needs_device(const nvmet::DesiredExport& desired, const std::optional<nvmet::LiveSubsystem>& live) {
  if (!desired.access.published) return false;
  if (!live || !live->enabled()) return true;
  const auto ns = live->namespaces.find(std::to_string(nvmet::k_nsid));
  return ns == live->namespaces.end() || ns->second.device_path != desired.device.path;
}

Task<Result<void>> store_if_different(HostPtr host, ExportRecord wanted) {
  auto record = co_await host->read_record(wanted.volume);
  if (!record) co_return tl::unexpected(record.error());
  if (*record && (*record)->same_export(wanted) && (*record)->token.generation == wanted.token.generation)
    co_return Result<void>{};
  const StateStore::RecordChange change{wanted.volume, wanted};
  co_return co_await host->write_record(change);
}

Task<Result<ReconcileOutcome>> reconcile_export(HostPtr host, AgentVolumeId volume,
                                                Shared<ReconcileOne> request) {
  const v1::DesiredVolume& wanted = request->desired;
  auto wish = parse_spec(*host, volume, wanted.spec());
  if (!wish) co_return tl::unexpected(wish.error());
  if (auto ok = check_initiators(volume, wanted); !ok) co_return tl::unexpected(ok.error());
  const Token token = token_of(wanted.token());
  auto admitted = co_await admit_durably(host, volume, token, OpClass::grant, "reconcile");
  if (!admitted) co_return tl::unexpected(admitted.error());
  auto live = co_await host->read_export(wish->identity.nqn);
  if (!live) co_return tl::unexpected(live.error());
  nvmet::DesiredExport desired = desired_export(*host, volume, *wish);
  desired.access.published = wanted.initiators_size() > 0;
  for (const auto& initiator : wanted.initiators()) desired.access.hosts.insert(initiator.host_nqn());
  if (needs_device(desired, *live)) {
    auto device = co_await host->activate(volume, token.volume_uid);
    if (!device) co_return tl::unexpected(device.error());
    desired.device = {device->path, device->number};
  }
  if (desired.access.published) {
    auto port = co_await host->port_id(wish->endpoint);
    if (!port) co_return tl::unexpected(port.error());
    desired.access.port_id = *port;
  }
  nvmet::ExportPlan plan = nvmet::plan_export(desired, *live);
  ReconcileOutcome outcome;
  outcome.changed = !plan.empty();
  if (request->hold_links && !plan.open.empty())
    outcome.link = PendingLink{wish->endpoint, desired.nqn, std::exchange(plan.open, {})};
  auto done = co_await carry_out(host, desired.nqn, std::move(plan), wish->endpoint);
  if (!done) co_return tl::unexpected(done.error());
  ExportRecord record = record_of(volume, token, *wish, initiators_of(wanted));
  auto kept = co_await store_if_different(host, std::move(record));
  if (!kept) co_return tl::unexpected(kept.error());
  co_return outcome;
}

}  // namespace

Task<Result<ReconcileOutcome>> reconcile_volume(HostPtr host, Shared<ReconcileOne> request) {
  auto volume = target(*host, request->desired.volume());
  if (!volume) co_return tl::unexpected(volume.error());
  if (request->desired.has_spec()) co_return co_await reconcile_export(host, *volume, request);
  co_return co_await reconcile_unexported(host, *volume, token_of(request->desired.token()));
}

Task<Result<ReconcileOutcome>> close_stray(HostPtr host, Shared<CloseStray> request) {
  if (!request->volume) co_return co_await close_all_access(host, request->nqn);
  auto stored = co_await host->read_mark(*request->volume);
  if (!stored) co_return tl::unexpected(stored.error());
  // Moved on after the list was made: a delayed list of a former leader must not close it.
  if (stored->mark && stored->mark->state == LifeState::open &&
      stored->mark->sequence > request->known_sequence)
    co_return ReconcileOutcome{};
  auto closed = co_await close_all_access(host, request->nqn);
  if (!closed) co_return closed;
  const StateStore::RecordChange drop{*request->volume, std::nullopt};
  auto dropped = co_await host->write_record(drop);
  if (!dropped) co_return tl::unexpected(dropped.error());
  co_return closed;
}

v1::DesiredVolume desired_of_record(const ExportRecord& record) {
  v1::DesiredVolume desired;
  desired.mutable_token()->set_volume_uid(record.token.volume_uid);
  desired.mutable_token()->set_generation(record.token.generation);
  desired.mutable_volume()->set_agent_volume_id(record.volume.str());
  desired.mutable_volume()->set_backend_type("lvm-lv");
  v1::ExportSpec& spec = *desired.mutable_spec();
  spec.set_bind_address(record.bind_address);
  spec.set_port(record.port);
  spec.set_acl_enabled(record.acl_enabled);
  spec.set_in_capsule_data_size(record.in_capsule_data_size);
  spec.set_nqn(record.nqn);
  spec.set_namespace_uuid(record.namespace_uuid);
  spec.set_serial(record.serial);
  for (const auto& entry : record.initiators) {
    v1::Initiator& initiator = *desired.add_initiators();
    initiator.set_host_nqn(entry.host_nqn);
    initiator.set_readonly(entry.readonly);
  }
  return desired;
}

}  // namespace pillar::agent
