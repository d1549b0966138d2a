// NodeUnstageVolume: from the record alone, every layer, this NQN only.

#include <algorithm>

#include "actors/node/volume_ops.hpp"

namespace pillar::node {
namespace {

bool is_timeout(const Error& error) {
  return error.reason == Reason::command_timeout || error.code == Code::deadline_exceeded ||
         error.code == Code::aborted || error.reason == Reason::queue_full;
}

Error still_writing(const StageRecord& record, const std::string& what) {
  return Error{Code::unavailable,
               Reason::command_timeout,
               "volume " + record.volume_id + ": " + what +
                   "; it stays connected until its data is on the storage node, try again",
               {}};
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

}  // namespace

VolumeOps::Answer<csi::NodeUnstageVolumeResponse> VolumeOps::unstage(
    Context context, Request<csi::NodeUnstageVolumeRequest> wire) {
  auto good = check_id_and_path(wire->volume_id(), "staging target path", wire->staging_target_path(),
                                settings_.rules);
  if (!good) co_return tl::unexpected(good.error());
  const std::string volume_id = wire->volume_id();
  const std::string asked = wire->staging_target_path();
  auto path = co_await resolve("staging target path", asked);
  if (!path) co_return tl::unexpected(path.error());
  auto loaded = co_await load(volume_id);
  if (!loaded) co_return tl::unexpected(loaded.error());
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  std::optional<StageRecord> found = std::move(*loaded);
  if (!found) {
    auto rebuilt = rebuild_record(*view, volume_id, *path);
    if (!rebuilt) co_return tl::unexpected(rebuilt.error());
    if (!*rebuilt) co_return csi::NodeUnstageVolumeResponse();
    context.note("record", "rebuilt");
    found = std::move(*rebuilt);
  }
  auto step = plan_unstage(*found, *path, *view);
  if (!step) co_return tl::unexpected(step.error());
  if (*step == UnstageStep::nothing) co_return csi::NodeUnstageVolumeResponse();
  const Record record = std::make_shared<StageRecord>(std::move(*found));
  if (record->find_staging(*path) == nullptr)
    record->stagings.push_back(Staging{*path, StagingState::unstaging, std::nullopt});
  auto done = co_await take_down(context, record, *path);
  if (!done) co_return tl::unexpected(done.error());
  co_return csi::NodeUnstageVolumeResponse();
}

VolumeOps::Answer<VolumeOps::Record> VolumeOps::finish_unstages(Context context, Record record) {
  std::vector<std::string> paths;
  for (const auto& each : record->stagings)
    if (each.state == StagingState::unstaging) paths.push_back(each.path);
  for (const auto& path : paths) {
    auto gone = co_await take_down(context, record, path);
    if (!gone) co_return tl::unexpected(gone.error());
    if (*gone) co_return Record();
  }
  co_return record;
}

VolumeOps::Answer<bool> VolumeOps::take_down(Context context, Record record, std::string path) {
  record->find_staging(path)->state = StagingState::unstaging;
  const bool last = record->stagings.size() == 1;
  if (last) record->phase = Phase::unstaging;
  // Whoever finds the earlier record after a crash here reads from mountinfo what is left to do.
  auto saved = co_await save_if_possible(context, record);
  if (!saved) co_return tl::unexpected(saved.error());
  auto announced = co_await context.step("unstaging_written");
  if (!announced) co_return tl::unexpected(announced.error());
  auto unmounted = co_await unmount_staging(context, record, path);
  if (!unmounted) co_return tl::unexpected(unmounted.error());
  if (last) {
    auto ended = co_await end_session(context, record);
    if (!ended) co_return tl::unexpected(ended.error());
    co_return true;
  }
  record->drop_staging(path);
  if (!record->any_staged() && record->phase == Phase::mounted) record->phase = Phase::attached;
  saved = co_await save(record);
  if (!saved) co_return tl::unexpected(saved.error());
  co_return false;
}

VolumeOps::Answer<void> VolumeOps::unmount_staging(Context context, Record record, std::string path) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto layers = view->mounts.layers_at(path);
  if (layers.empty()) co_return Result<void>();
  auto free = refuse_other_volume(*record, path, *view);
  if (!free) co_return free;
  const bool alive = classify(*view, layers.front(), *record) == LayerKind::ours;
  if (alive && !layers.front().read_only()) {
    // A flush or an unmount would hang in the kernel until the storage node is back or given up.
    if (!session_live(*view, record->session))
      co_return tl::unexpected(still_writing(*record, "its storage node cannot be reached"));
    auto flushed = co_await host_->flush(path);
    // Whatever else a flush says (EIO, ESTALE of a dead filesystem): that data is lost already, and only an
    // unmount lets the volume be used again.
    if (!flushed && is_timeout(flushed.error()))
      co_return tl::unexpected(still_writing(*record, "its data could not be flushed in time"));
    if (!flushed) context.note("flush", flushed.error().message);
  }
  auto gone = co_await host_->unmount_all(path);
  if (!gone) co_return tl::unexpected(gone.error());
  auto announced = co_await context.step("unmounted");
  if (!announced) co_return announced;
  if (*gone == hostio::UnmountOutcome::flushing)
    co_return tl::unexpected(still_writing(*record, "its unmount still waits for the device"));
  co_return Result<void>();
}

VolumeOps::Answer<void> VolumeOps::end_session(Context context, Record record) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  if (const auto users = users_of(*view, *record); !users.empty())
    co_return fail(Reason::device_busy, "volume " + record->volume_id + " is still mounted at " +
                                            join(users) + "; unmount that first");
  if (const auto* device = find_namespace(*view, record->session)) {
    const hostio::NvmeNamespace copy = *device;
    auto stacked = co_await host_->holders(copy);
    if (!stacked) co_return tl::unexpected(stacked.error());
    if (!stacked->empty())
      co_return fail(Reason::device_busy, "device " + copy.node + " of volume " + record->volume_id +
                                              " is held by " + join(*stacked) + "; take that down first");
    const std::string fs_type = record->usage.fs_type;
    const bool mount = record->usage.mode == VolumeMode::mount && !fs_type.empty();
    if (mount && session_live(*view, record->session)) {
      auto active = co_await host_->superblock_active(fs_type, copy);
      if (!active) co_return tl::unexpected(active.error());
      if (*active)
        co_return tl::unexpected(still_writing(
            *record,
            "its filesystem is still active (an unmount that is being written out, or a mount in "
            "another mount namespace)"));
    }
  }
  const std::string nqn = record->session.nqn;
  auto ended = co_await host_->disconnect(nqn);
  if (!ended) co_return ended;
  auto announced = co_await context.step("disconnected");
  if (!announced) co_return announced;
  auto after = co_await host_->view();
  if (!after) co_return tl::unexpected(after.error());
  if (const auto* rest = find_namespace(*after, record->session))
    co_return fail(Reason::device_busy, "device " + rest->node + " of volume " + record->volume_id +
                                            " is still there after its disconnect: something holds it open");
  const std::string name = record_file_name(record->volume_id);
  co_return co_await host_->remove_record(name);
}

}  // namespace pillar::node
