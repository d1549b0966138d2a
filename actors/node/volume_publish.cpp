// NodePublishVolume and NodeUnpublishVolume.

#include <algorithm>

#include "actors/node/volume_ops.hpp"

namespace pillar::node {

VolumeOps::Answer<csi::NodePublishVolumeResponse> VolumeOps::publish(
    Context context, Request<csi::NodePublishVolumeRequest> wire) {
  auto parsed = parse_publish(*wire, settings_.rules);
  if (!parsed) co_return tl::unexpected(parsed.error());
  auto staging = co_await resolve("staging target path", parsed->staging_path);
  if (!staging) co_return tl::unexpected(staging.error());
  auto target = co_await resolve("target path", parsed->target);
  if (!target) co_return tl::unexpected(target.error());
  parsed->staging_path = *staging;
  parsed->target = *target;
  const auto request = std::make_shared<const PublishRequest>(std::move(*parsed));
  auto loaded = co_await load(request->volume_id);
  if (!loaded) co_return tl::unexpected(loaded.error());
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto step = plan_publish(*loaded, *request, *view);
  if (!step) co_return tl::unexpected(step.error());
  if (*step == PublishStep::done) co_return csi::NodePublishVolumeResponse();
  if (view->hidden) co_return tl::unexpected(*view->hidden);
  const Record record = std::make_shared<StageRecord>(std::move(**loaded));
  record->publications = live_publications(*view, *record);
  const bool adopt = *step == PublishStep::adopt;
  record->put_publication(
      Publication{request->target, effective_readonly(*record, *request), request->capability.access, adopt});
  auto saved = co_await save(record);
  if (!saved) co_return tl::unexpected(saved.error());
  if (adopt) co_return csi::NodePublishVolumeResponse();
  auto announced = co_await context.step("publication_written");
  if (!announced) co_return tl::unexpected(announced.error());
  const bool clear = *step == PublishStep::rebind;
  auto bound = co_await bind_target(context, record, request, clear);
  if (!bound) {
    const std::string path = request->target;
    auto undone = co_await undo_bind(record, path);
    if (!undone) context.note("rollback", undone.error().message);
    co_return tl::unexpected(bound.error());
  }
  co_return csi::NodePublishVolumeResponse();
}

VolumeOps::Answer<void> VolumeOps::bind_target(Context context, Record record,
                                               std::shared_ptr<const PublishRequest> request, bool clear) {
  const std::string target = request->target;
  const bool readonly = effective_readonly(*record, *request);
  if (clear) {
    auto gone = co_await host_->unmount_all(target);
    if (!gone) co_return tl::unexpected(gone.error());
  }
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  if (record->usage.mode == VolumeMode::block) {
    const auto* present = find_namespace(*view, record->session);
    if (present == nullptr)
      co_return fail(Reason::not_staged,
                     "the device of volume " + record->volume_id + " is gone; stage it again");
    const hostio::NvmeNamespace device = *present;
    if (device.read_only != readonly) {
      auto flagged = co_await host_->set_read_only(device, readonly);
      if (!flagged) co_return flagged;
    }
    auto bound = co_await host_->bind_node(device, target);
    if (!bound) co_return bound;
  } else {
    auto made = co_await host_->make_directory(target);
    if (!made) co_return made;
    const BindJob job{request->staging_path, target, readonly};
    auto bound = co_await host_->bind(job);
    if (!bound) co_return bound;
  }
  auto announced = co_await context.step("bound");
  if (!announced) co_return announced;
  auto after = co_await host_->view();
  if (!after) co_return tl::unexpected(after.error());
  const auto layers = after->mounts.layers_at(target);
  const bool verified = layers.size() == 1 && classify(*after, layers.front(), *record) == LayerKind::ours &&
                        (record->usage.mode == VolumeMode::block || layers.front().read_only() == readonly);
  if (!verified)
    co_return fail(Reason::device_mismatch,
                   "after the bind " + std::to_string(layers.size()) + " layers are at " + target +
                       " and the top one is not volume " + record->volume_id + " as asked; publish it again");
  record->put_publication(Publication{target, readonly, request->capability.access, true});
  co_return co_await save(record);
}

VolumeOps::Answer<void> VolumeOps::undo_bind(Record record, std::string target) {
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  // Somebody else may have mounted there meanwhile, which may be why the bind failed: that stays.
  const auto kinds = target_layers(*view, target, *record);
  if (std::find(kinds.begin(), kinds.end(), LayerKind::foreign) == kinds.end()) {
    auto gone = co_await unbind(target);
    if (!gone) co_return gone;
  }
  record->drop_publication(target);
  co_return co_await save(record);
}

VolumeOps::Answer<void> VolumeOps::unbind(std::string target) {
  auto gone = co_await host_->unmount_all(target);
  if (!gone) co_return tl::unexpected(gone.error());
  if (*gone == hostio::UnmountOutcome::flushing)
    co_return fail(Reason::command_timeout,
                   "the unmount of " + target + " still waits for its device; try again");
  co_return co_await host_->remove_target(target);
}

VolumeOps::Answer<csi::NodeUnpublishVolumeResponse> VolumeOps::unpublish(
    Context context, Request<csi::NodeUnpublishVolumeRequest> wire) {
  auto good = check_id_and_path(wire->volume_id(), "target path", wire->target_path(), settings_.rules);
  if (!good) co_return tl::unexpected(good.error());
  const std::string volume_id = wire->volume_id();
  const std::string asked = wire->target_path();
  auto target = co_await resolve("target path", asked);
  if (!target) co_return tl::unexpected(target.error());
  auto loaded = co_await load(volume_id);
  if (!loaded) co_return tl::unexpected(loaded.error());
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto step = plan_unpublish(*loaded, volume_id, *target, *view);
  if (!step) co_return tl::unexpected(step.error());
  Result<void> done;
  if (*step == UnpublishStep::unmount)
    done = co_await unbind(*target);
  else
    done = co_await host_->remove_target(*target);
  if (!done) co_return tl::unexpected(done.error());
  auto announced = co_await context.step("unbound");
  if (!announced) co_return tl::unexpected(announced.error());
  if (*loaded && (*loaded)->find_publication(*target) != nullptr) {
    const Record record = std::make_shared<StageRecord>(std::move(**loaded));
    record->drop_publication(*target);
    // Of a publication that stays recorded mountinfo says that it is gone.
    auto saved = co_await save_if_possible(context, record);
    if (!saved) co_return tl::unexpected(saved.error());
  }
  co_return csi::NodeUnpublishVolumeResponse();
}

}  // namespace pillar::node
