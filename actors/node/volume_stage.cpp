// Records, NodeStageVolume and what happens to records when the process starts.

#include <algorithm>

#include "actors/node/volume_ops.hpp"
#include "messages/ids.hpp"

namespace pillar::node {
namespace {

StageRecord new_record(const StageRequest& request) {
  StageRecord record;
  record.volume_id = request.volume_id;
  record.usage = request.usage;
  record.session = request.context.session;
  return record;
}

Error stalled_error(const StageRecord& record, const std::string& path, const std::string& why) {
  return Error{Code::unavailable,
               Reason::filesystem_dead,
               "the filesystem of volume " + record.volume_id + " at " + path + " does not answer: " + why +
                   "; it is tried again when the storage node is back",
               {}};
}

}  // namespace

VolumeOps::Answer<std::optional<StageRecord>> VolumeOps::load(std::string volume_id, bool keep_corrupt) {
  const std::string name = record_file_name(volume_id);
  auto text = co_await host_->read_record(name);
  if (!text) co_return tl::unexpected(text.error());
  if (!*text) co_return std::optional<StageRecord>();
  auto record = decode(**text, name);
  if (record) co_return std::optional<StageRecord>(std::move(*record));
  if (!keep_corrupt) {
    auto moved = co_await host_->set_aside_record(name);
    if (!moved) co_return tl::unexpected(with_context(moved.error(), record.error().message));
  }
  co_return std::optional<StageRecord>();
}

VolumeOps::Answer<void> VolumeOps::save(Record record) {
  const std::string name = record_file_name(record->volume_id);
  const std::string text = encode(*record);
  co_return co_await host_->write_record(name, text);
}

VolumeOps::Answer<void> VolumeOps::save_if_possible(Context context, Record record) {
  auto saved = co_await save(record);
  if (saved || saved.error().reason != Reason::state_unwritable) co_return saved;
  context.note("record", saved.error().message);
  co_return Result<void>();
}

VolumeOps::Answer<std::string> VolumeOps::resolve(const char* what, std::string path) {
  auto resolved = co_await host_->canonical(path);
  if (!resolved) co_return tl::unexpected(resolved.error());
  auto allowed = check_path(what, *resolved, settings_.rules);
  if (!allowed) co_return tl::unexpected(with_context(allowed.error(), path));
  co_return resolved;
}

VolumeOps::Answer<csi::NodeStageVolumeResponse> VolumeOps::stage(Context context,
                                                                 Request<csi::NodeStageVolumeRequest> wire) {
  auto parsed = parse_stage(*wire, settings_.rules);
  if (!parsed) co_return tl::unexpected(parsed.error());
  auto path = co_await resolve("staging target path", parsed->path);
  if (!path) co_return tl::unexpected(path.error());
  parsed->path = *path;
  Shared request = std::make_shared<const StageRequest>(std::move(*parsed));

  auto loaded = co_await load(request->volume_id);
  if (!loaded) co_return tl::unexpected(loaded.error());
  Record record;
  if (*loaded) {
    record = std::make_shared<StageRecord>(std::move(**loaded));
    auto settled = co_await finish_unstages(context, record);
    if (!settled) co_return tl::unexpected(settled.error());
    record = *settled;
  }
  const bool recorded = record != nullptr;
  if (recorded) {
    auto settled = co_await settle_address(context, record, request);
    if (!settled) co_return tl::unexpected(settled.error());
    request = *settled;
  }
  if (!recorded) record = std::make_shared<StageRecord>(new_record(*request));
  auto step = co_await choose_step(context, record, recorded, request);
  if (!step) co_return tl::unexpected(step.error());
  if (*step == StageStep::done) co_return csi::NodeStageVolumeResponse();

  auto done = co_await bring_up(context, record, request, *step);
  if (!done) {
    const std::string staging = request->path;
    auto undone = co_await roll_back(context, record, staging);
    if (!undone) context.note("rollback", undone.error().message);
    co_return tl::unexpected(done.error());
  }
  co_return csi::NodeStageVolumeResponse();
}

VolumeOps::Answer<VolumeOps::Shared> VolumeOps::settle_address(Context context, Record record,
                                                               Shared request) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  if (view->hidden) co_return tl::unexpected(*view->hidden);
  auto step = plan_address(*record, *request, *view);
  if (!step) co_return tl::unexpected(step.error());
  if (*step == AddressStep::keep) {
    auto kept = std::make_shared<StageRequest>(*request);
    kept->context.session = record->session;
    co_return Shared(std::move(kept));
  }
  if (*step == AddressStep::move) {
    // First the session: until it is ended an unmount would wait for the old address. What was not written
    // yet is lost, as the publication it belonged to has ended: only a volume that nobody holds moves.
    const std::string nqn = record->session.nqn;
    auto ended = co_await host_->disconnect(nqn);
    if (!ended) co_return tl::unexpected(ended.error());
    auto announced = co_await context.step("address_left");
    if (!announced) co_return tl::unexpected(announced.error());
    record->session = request->context.session;
    auto saved = co_await save(record);
    if (!saved) co_return tl::unexpected(saved.error());
    context.note("address", record->session.address);
  }
  co_return request;
}

VolumeOps::Answer<StageStep> VolumeOps::choose_step(Context context, Record record, bool recorded,
                                                    Shared request) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  if (view->hidden) co_return tl::unexpected(*view->hidden);
  const auto known = recorded ? std::optional(*record) : std::nullopt;
  auto step = plan_stage(known, *request, *view);
  if (!step) co_return step;
  if (*step == StageStep::check_health) {
    auto alive = co_await mount_is_alive(record, request->path, &request->mount_options);
    if (!alive) co_return tl::unexpected(alive.error());
    if (*alive) co_return StageStep::done;
    step = StageStep::mount_again;
  }
  if (*step == StageStep::mount_again) {
    auto allowed = check_remount(*record, request->path, *view);
    if (!allowed) co_return tl::unexpected(allowed.error());
  }
  if (*step == StageStep::replace_session) {
    auto announced = co_await context.step("replace_session");
    if (!announced) co_return tl::unexpected(announced.error());
    auto ended = co_await end_session(context, record);
    if (!ended) co_return tl::unexpected(ended.error());
    *record = new_record(*request);
    auto again = co_await host_->view();
    if (!again) co_return tl::unexpected(again.error());
    co_return plan_stage(std::nullopt, *request, *again);
  }
  co_return step;
}

VolumeOps::Answer<bool> VolumeOps::mount_is_alive(Record record, std::string path,
                                                  const hostio::MountOptions* options) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto layers = view->mounts.layers_at(path);
  if (layers.size() != 1 || classify(*view, layers.front(), *record) != LayerKind::ours) co_return false;
  if (options != nullptr && !hostio::mounted_as(layers.front(), *options)) co_return false;
  const bool live = session_live(*view, record->session);
  const bool readonly = record->usage.readonly;
  auto verdict = co_await host_->filesystem_health(layers.front(), readonly, live);
  if (!verdict) co_return tl::unexpected(verdict.error());
  switch (verdict->health) {
    case hostio::FilesystemHealth::alive:
    case hostio::FilesystemHealth::degraded:
      co_return true;
    case hostio::FilesystemHealth::dead:
      co_return false;
    case hostio::FilesystemHealth::stalled:
      break;
  }
  co_return tl::unexpected(stalled_error(*record, path, verdict->why));
}

VolumeOps::Answer<void> VolumeOps::bring_up(Context context, Record record, Shared request, StageStep step) {
  auto intent = co_await write_intent(context, record, request);
  if (!intent) co_return intent;
  if (step == StageStep::mount_again) {
    auto cleared = co_await clear_path(record, request);
    if (!cleared) co_return cleared;
  }
  auto device = co_await attach(context, record, request);
  if (!device) co_return tl::unexpected(device.error());
  if (request->usage.mode == VolumeMode::mount) {
    bool mounted = false;
    if (step == StageStep::adopt_mount) {
      auto alive = co_await mount_is_alive(record, request->path, &request->mount_options);
      if (!alive) co_return tl::unexpected(alive.error());
      mounted = *alive;
      if (!mounted) {
        auto cleared = co_await clear_path(record, request);
        if (!cleared) co_return cleared;
      }
    }
    if (!mounted) {
      auto made = co_await set_up_filesystem(context, record, request, *device);
      if (!made) co_return made;
    }
  }
  auto* staging = record->find_staging(request->path);
  staging->state = StagingState::staged;
  staging->device = device->number;
  record->phase = Phase::mounted;
  auto saved = co_await save(record);
  if (!saved) co_return saved;
  co_return co_await context.step("staged_written");
}

VolumeOps::Answer<void> VolumeOps::write_intent(Context context, Record record, Shared request) {
  if (auto* staging = record->find_staging(request->path))
    staging->state = StagingState::staging;
  else
    record->stagings.push_back(Staging{request->path, StagingState::staging, std::nullopt});
  record->boot_id = settings_.boot_id;
  if (!record->any_staged()) {
    // An unfinished stage is bound by nothing: the newest request says what is wanted.
    record->usage = request->usage;
    record->session = request->context.session;
    if (record->phase != Phase::formatting) record->phase = Phase::intent;
  }
  auto saved = co_await save(record);
  if (!saved) co_return saved;
  co_return co_await context.step("intent_written");
}

VolumeOps::Answer<void> VolumeOps::clear_path(Record record, Shared request) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto allowed = check_remount(*record, request->path, *view);
  if (!allowed) co_return allowed;
  const std::string path = request->path;
  auto gone = co_await host_->unmount_all(path);
  if (!gone) co_return tl::unexpected(gone.error());
  if (*gone == hostio::UnmountOutcome::flushing)
    co_return tl::unexpected(stalled_error(*record, path, "its unmount still waits for the device"));
  co_return Result<void>();
}

VolumeOps::Answer<hostio::NvmeNamespace> VolumeOps::attach(Context context, Record record, Shared request) {
  auto cleared = co_await drop_stale_session(record, request);
  if (!cleared) co_return tl::unexpected(cleared.error());
  const SessionTarget session = request->context.session;
  const auto tunables = request->context.tunables;
  auto connected = co_await host_->connect(session, tunables);
  if (!connected) co_return tl::unexpected(connected.error());
  auto announced = co_await context.step("connected");
  if (!announced) co_return tl::unexpected(announced.error());
  auto device = co_await host_->wait_device(session);
  if (device && device->size_bytes < request->publish.capacity_bytes)
    device = co_await host_->wait_size(session, request->publish.capacity_bytes);
  if (!device) co_return device;
  if (device->size_bytes == 0)
    co_return fail(Reason::device_mismatch, "device " + device->node + " of volume " + record->volume_id +
                                                " has no size; check its export on the storage node");
  const auto* access = find_access_mode(request->usage.access);
  const bool readonly = access != nullptr && access->readonly;
  const bool shared = record->any_staged() || !record->publications.empty();
  // Before the mount, so that not even a log replay writes (row H03); a device in use keeps its flag.
  if (readonly || (!shared && device->read_only)) {
    auto flagged = co_await host_->set_read_only(*device, readonly);
    if (!flagged) co_return tl::unexpected(flagged.error());
  }
  record->device = RecordedDevice{device->node, device->number};
  if (record->phase == Phase::intent) record->phase = Phase::attached;
  auto saved = co_await save(record);
  if (!saved) co_return tl::unexpected(saved.error());
  announced = co_await context.step("attached_written");
  if (!announced) co_return tl::unexpected(announced.error());
  co_return device;
}

VolumeOps::Answer<void> VolumeOps::drop_stale_session(Record record, Shared request) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto& wanted = request->context.session;
  const auto* subsystem = find_subsystem(*view, wanted.nqn);
  if (subsystem == nullptr) co_return Result<void>();
  const auto matches = [&](const hostio::NvmeController& each) {
    return each.host_nqn == settings_.rules.host_nqn && each.address == wanted.address &&
           each.port == wanted.port;
  };
  const auto& all = subsystem->controllers;
  const auto stale = std::find_if_not(all.begin(), all.end(), matches);
  if (stale == all.end()) co_return Result<void>();
  bool mounted = !users_of(*view, *record).empty();
  for (const auto& each : record->stagings) mounted = mounted || !view->mounts.layers_at(each.path).empty();
  if (mounted && std::any_of(all.begin(), all.end(), matches)) co_return Result<void>();
  if (mounted)
    co_return fail(Reason::device_busy, "volume " + record->volume_id + " is connected to " + stale->address +
                                            ":" + std::to_string(stale->port) + " as " + stale->host_nqn +
                                            " and mounted; unstage it before it is staged from " +
                                            wanted.address + ":" + std::to_string(wanted.port));
  const std::string nqn = wanted.nqn;
  co_return co_await host_->disconnect(nqn);
}

VolumeOps::Answer<void> VolumeOps::set_up_filesystem(Context context, Record record, Shared request,
                                                     hostio::NvmeNamespace device) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  // What is mounted already (row A07) has a filesystem; checking it under a mount would be wrong.
  if (view->mounts.mounts_of(device.number).empty()) {
    auto formatted = co_await ensure_formatted(context, record, request, device);
    if (!formatted) co_return formatted;
    if (!request->usage.readonly) {
      const std::string fs_type = request->usage.fs_type;
      auto checked = co_await host_->fsck(fs_type, device);
      if (!checked) co_return tl::unexpected(checked.error());
      if (*checked == hostio::FsckOutcome::repaired) context.note("fsck", "repaired");
    }
  }
  auto mounted = co_await mount_device(context, record, request, device);
  if (!mounted) co_return mounted;
  co_return co_await verify_mount(record, request);
}

VolumeOps::Answer<void> VolumeOps::ensure_formatted(Context context, Record record, Shared request,
                                                    hostio::NvmeNamespace device) {
  auto content = co_await host_->probe(device);
  if (!content) co_return tl::unexpected(content.error());
  const bool redo = marker_matches(*record, request->publish);
  auto decision = plan_format(*content, redo, *request);
  if (!decision) co_return tl::unexpected(decision.error());
  if (*decision != hostio::FormatDecision::use) {
    auto fits = hostio::check_fs_size(request->usage.fs_type, device.size_bytes);
    if (!fits) co_return fits;
    if (!redo) record->marker = uuid_v4();
    record->generation = request->publish.generation;
    record->phase = Phase::formatting;
    const bool clear = *decision == hostio::FormatDecision::clear_and_format;
    co_return co_await format(context, record, request, device, clear);
  }
  if (record->phase == Phase::formatting) {
    // The cut-off attempt had finished after all, or another node has formatted since.
    record->phase = Phase::attached;
    record->marker.clear();
    co_return co_await save(record);
  }
  co_return Result<void>();
}

VolumeOps::Answer<void> VolumeOps::format(Context context, Record record, Shared request,
                                          hostio::NvmeNamespace device, bool clear) {
  auto saved = co_await save(record);
  if (!saved) co_return saved;
  auto announced = co_await context.step("formatting_written");
  if (!announced) co_return announced;
  auto same = co_await verify_device(record, device);
  if (!same) co_return same;
  if (clear) {
    auto cleared = co_await host_->clear_interrupted_format(device);
    if (!cleared) co_return cleared;
  }
  const MkfsJob job{device, request->usage.fs_type, request->context.mkfs_options};
  auto made = co_await host_->mkfs(job);
  if (!made) co_return made;
  announced = co_await context.step("formatted");
  if (!announced) co_return announced;
  record->phase = Phase::attached;
  record->marker.clear();
  co_return co_await save(record);
}

VolumeOps::Answer<void> VolumeOps::mount_device(Context context, Record record, Shared request,
                                                hostio::NvmeNamespace device) {
  const std::string path = request->path;
  auto made = co_await host_->make_directory(path);
  if (!made) co_return made;
  auto same = co_await verify_device(record, device);
  if (!same) co_return same;
  // Recorded before the mount, so that a mount that outlives us is known by its number.
  record->find_staging(path)->device = device.number;
  const MountJob job{device, path, request->usage.fs_type, request->mount_options};
  auto mounted = co_await host_->mount(job);
  if (!mounted) co_return mounted;
  co_return co_await context.step("mounted");
}

VolumeOps::Answer<void> VolumeOps::verify_mount(Record record, Shared request) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto layers = view->mounts.layers_at(request->path);
  if (layers.size() == 1 && classify(*view, layers.front(), *record) == LayerKind::ours &&
      layers.front().fs_type == request->usage.fs_type &&
      hostio::mounted_as(layers.front(), request->mount_options))
    co_return Result<void>();
  const std::string seen =
      layers.empty() ? "nothing" : layers.front().fs_type + " [" + layers.front().vfs_options + "]";
  co_return fail(Reason::device_mismatch,
                 "after the mount of volume " + record->volume_id + " " + std::to_string(layers.size()) +
                     " layers are at " + request->path + ", on top " + seen + "; unstage and stage it again");
}

VolumeOps::Answer<void> VolumeOps::verify_device(Record record, hostio::NvmeNamespace device) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto* now = find_namespace(*view, record->session);
  if (now != nullptr && now->number == device.number) co_return Result<void>();
  co_return fail(Reason::device_missing, "device " + device.node + " of volume " + record->volume_id +
                                             " went away while it was being staged; it is tried again");
}

VolumeOps::Answer<void> VolumeOps::roll_back(Context context, Record record, std::string path) {
  // mkfs may still run, and the marker is needed to do it again: everything stays.
  if (record->phase == Phase::formatting) co_return Result<void>();
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const bool last = record->stagings.size() <= 1;
  if (last && !users_of(*view, *record).empty()) co_return Result<void>();
  const auto kinds = layers_of(*view, path, *record);
  if (std::find(kinds.begin(), kinds.end(), LayerKind::foreign) != kinds.end()) co_return Result<void>();
  if (!kinds.empty()) {
    auto gone = co_await host_->unmount_all(path);
    if (!gone) co_return tl::unexpected(gone.error());
    if (*gone == hostio::UnmountOutcome::flushing) co_return Result<void>();
  }
  if (last) co_return co_await end_session(context, record);
  record->drop_staging(path);
  record->phase = record->any_staged() ? Phase::mounted : Phase::attached;
  co_return co_await save(record);
}

runtime::Task<Result<ReconcileReport>> reconcile_records(std::shared_ptr<Host> host, std::string boot_id) {
  ReconcileReport report;
  auto names = co_await host->list_records();
  if (!names) co_return tl::unexpected(names.error());
  auto view = co_await host->view();
  if (!view) co_return tl::unexpected(view.error());
  std::set<std::string> recorded;
  for (const auto& name : *names) {
    auto text = co_await host->read_record(name);
    if (!text) co_return tl::unexpected(text.error());
    if (!*text) continue;
    auto record = decode(**text, name);
    if (!record) {
      ++report.corrupt;
      auto moved = co_await host->set_aside_record(name);
      if (!moved) co_return tl::unexpected(moved.error());
      continue;
    }
    recorded.insert(record->session.nqn);
    if (reconcile_record(*record, *view, boot_id) == RecordFate::keep) {
      ++report.kept;
      continue;
    }
    auto removed = co_await host->remove_record(name);
    if (!removed) co_return tl::unexpected(removed.error());
    ++report.dropped;
  }
  for (const auto& each : view->subsystems)
    if (is_our_nqn(each.nqn) && !recorded.contains(each.nqn)) report.unrecorded.push_back(each.nqn);
  co_return report;
}

}  // namespace pillar::node
