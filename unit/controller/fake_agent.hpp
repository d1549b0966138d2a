#pragma once
// An agent in memory for tests of the controller: a small model of docs/fencing.md section 1 over backends
// and exports. Answers at once, on the caller's thread.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/controller/agent_client.hpp"

namespace pillar::controller::testing {

/// What happens to one call.
enum class Fate { normal, lost_before, lost_after, unavailable };

class FakeAgent final : public AgentClient {
 public:
  enum class MarkState { open, destroying, ended };
  struct Mark {
    std::string uid;
    std::uint64_t generation = 0;
    MarkState state = MarkState::open;
    std::set<std::string> retired;
  };
  struct Backend {
    std::string uid;
    std::uint64_t bytes = 0;
  };
  struct Export {
    std::string nqn;
    std::set<std::string> hosts;
    pb::ExportSpec spec;
  };

  /// Asked before every call with the name of the rpc; decides its fate.
  std::function<Fate(const std::string& rpc)> fate;
  /// A refusal to give instead of acting, by rpc.
  std::map<std::string, Error> refuse;
  std::map<std::string, Mark> marks;
  std::map<std::string, Backend> backends;
  std::map<std::string, Export> exports;
  std::vector<std::string> log;  // "Create pool/a 1"
  std::string epoch = "e1";
  std::uint64_t sequence = 0;
  bool seeded = true;
  bool gated = false;
  std::uint64_t pool_bytes = std::uint64_t{100} << 30U;
  std::uint64_t extent = 4 << 20;
  std::vector<std::function<void()>> unanswered;
  std::recursive_mutex mutex;

  /// Hosts that can reach the volume.
  std::set<std::string> hosts(const std::string& ref) {
    const std::lock_guard lock(mutex);
    const auto found = exports.find(ref);
    return found == exports.end() ? std::set<std::string>() : found->second.hosts;
  }

  void call(pb::GetCapabilitiesRequest, Deadline, Answer<pb::GetCapabilitiesResponse> done) override {
    run<pb::GetCapabilitiesResponse>("GetCapabilities", std::move(done), [this] {
      pb::GetCapabilitiesResponse response;
      response.set_version("test");
      response.add_backends("lvm-lv");
      response.add_protocols("nvmeof-tcp");
      auto* pool = response.add_pools();
      pool->set_name("vg0");
      pool->set_type("lvm");
      pool->set_total_bytes(pool_bytes);
      pool->set_available_bytes(pool_bytes - used());
      pool->set_extent_bytes(extent);
      return Result<pb::GetCapabilitiesResponse>(response);
    });
  }
  void call(pb::HealthCheckRequest, Deadline, Answer<pb::HealthCheckResponse> done) override {
    run<pb::HealthCheckResponse>("HealthCheck", std::move(done), [this] {
      pb::HealthCheckResponse response;
      response.set_epoch(epoch);
      response.set_sequence(sequence);
      response.set_seeded(seeded);
      response.set_gated(gated);
      return Result<pb::HealthCheckResponse>(response);
    });
  }
  void call(pb::GetCapacityRequest, Deadline, Answer<pb::GetCapacityResponse> done) override {
    run<pb::GetCapacityResponse>("GetCapacity", std::move(done), [this] {
      pb::GetCapacityResponse response;
      response.mutable_pool()->set_available_bytes(pool_bytes - used());
      response.set_maximum_volume_bytes(pool_bytes - used());
      return Result<pb::GetCapacityResponse>(response);
    });
  }
  void call(pb::CreateVolumeRequest request, Deadline, Answer<pb::CreateVolumeResponse> done) override {
    run<pb::CreateVolumeResponse>(
        "Create", std::move(done), [this, request]() -> Result<pb::CreateVolumeResponse> {
          const auto& ref = request.volume().agent_volume_id();
          if (auto admitted = grant("Create", ref, request.token()); !admitted)
            return tl::unexpected(admitted.error());
          auto& backend = backends[ref];
          if (backend.bytes == 0) {
            const auto size = (request.required_bytes() + extent - 1) / extent * extent;
            if (request.limit_bytes() != 0 && size > request.limit_bytes()) {
              backends.erase(ref);
              return fail(Reason::out_of_range, "rounded size exceeds the limit");
            }
            if (used() + size > pool_bytes) {
              backends.erase(ref);
              return fail(Reason::no_space, "pool vg0 is full");
            }
            backend = {request.token().volume_uid(), size};
          }
          pb::CreateVolumeResponse response;
          response.set_capacity_bytes(backend.bytes);
          response.set_device_path("/dev/" + ref);
          return response;
        });
  }
  void call(pb::DeleteVolumeRequest request, Deadline, Answer<pb::DeleteVolumeResponse> done) override {
    run<pb::DeleteVolumeResponse>("Delete", std::move(done),
                                  [this, request]() -> Result<pb::DeleteVolumeResponse> {
                                    const auto& ref = request.volume().agent_volume_id();
                                    auto run_it = destroy(ref, request.token());
                                    if (!run_it) return tl::unexpected(run_it.error());
                                    if (*run_it) {
                                      exports.erase(ref);
                                      backends.erase(ref);
                                      marks[ref].state = MarkState::ended;
                                    }
                                    return pb::DeleteVolumeResponse();
                                  });
  }
  void call(pb::ExpandVolumeRequest request, Deadline, Answer<pb::ExpandVolumeResponse> done) override {
    run<pb::ExpandVolumeResponse>(
        "Expand", std::move(done), [this, request]() -> Result<pb::ExpandVolumeResponse> {
          const auto& ref = request.volume().agent_volume_id();
          if (auto admitted = grant("Expand", ref, request.token()); !admitted)
            return tl::unexpected(admitted.error());
          auto& backend = backends[ref];
          const auto size = (request.required_bytes() + extent - 1) / extent * extent;
          if (size > backend.bytes) {
            if (size - backend.bytes + used() > pool_bytes) return fail(Reason::no_space, "pool vg0 is full");
            backend.bytes = size;
          }
          pb::ExpandVolumeResponse response;
          response.set_capacity_bytes(backend.bytes);
          return response;
        });
  }
  void call(pb::ExportVolumeRequest request, Deadline, Answer<pb::ExportVolumeResponse> done) override {
    run<pb::ExportVolumeResponse>("Export", std::move(done),
                                  [this, request]() -> Result<pb::ExportVolumeResponse> {
                                    const auto& ref = request.volume().agent_volume_id();
                                    if (auto admitted = grant("Export", ref, request.token()); !admitted)
                                      return tl::unexpected(admitted.error());
                                    exports[ref].nqn = request.spec().nqn();
                                    exports[ref].spec = request.spec();
                                    pb::ExportVolumeResponse response;
                                    response.set_target_id(request.spec().nqn());
                                    return response;
                                  });
  }
  void call(pb::AllowInitiatorRequest request, Deadline, Answer<pb::AllowInitiatorResponse> done) override {
    run<pb::AllowInitiatorResponse>("Allow", std::move(done),
                                    [this, request]() -> Result<pb::AllowInitiatorResponse> {
                                      const auto& ref = request.volume().agent_volume_id();
                                      if (gated)
                                        return fail(Reason::restore_pending, "exports are being restored");
                                      if (auto admitted = grant("Allow", ref, request.token()); !admitted)
                                        return tl::unexpected(admitted.error());
                                      exports[ref].spec = request.spec();
                                      exports[ref].hosts.insert(request.initiator().host_nqn());
                                      return pb::AllowInitiatorResponse();
                                    });
  }
  void call(pb::DenyInitiatorRequest request, Deadline, Answer<pb::DenyInitiatorResponse> done) override {
    run<pb::DenyInitiatorResponse>("Deny", std::move(done),
                                   [this, request]() -> Result<pb::DenyInitiatorResponse> {
                                     const auto& ref = request.volume().agent_volume_id();
                                     if (auto admitted = grant("Deny", ref, request.token()); !admitted)
                                       return tl::unexpected(admitted.error());
                                     auto& hosts_now = exports[ref].hosts;
                                     if (request.host_nqn().empty())
                                       hosts_now.clear();
                                     else
                                       hosts_now.erase(request.host_nqn());
                                     pb::DenyInitiatorResponse response;
                                     for (const auto& host : hosts_now)
                                       response.add_remaining_host_nqns(host);
                                     return response;
                                   });
  }
  void call(pb::ReconcileStateRequest request, Deadline, Answer<pb::ReconcileStateResponse> done) override {
    run<pb::ReconcileStateResponse>("Reconcile", std::move(done),
                                    [this, request]() -> Result<pb::ReconcileStateResponse> {
                                      pb::ReconcileStateResponse response;
                                      for (const auto& volume : request.volumes()) {
                                        const auto& ref = volume.volume().agent_volume_id();
                                        auto* result = response.add_results();
                                        result->set_agent_volume_id(ref);
                                        auto admitted = grant("Reconcile", ref, volume.token());
                                        result->set_ok(admitted.has_value());
                                        if (!admitted) {
                                          result->set_reason(std::string(to_string(admitted.error().reason)));
                                          result->set_message(admitted.error().message);
                                          continue;
                                        }
                                        if (!volume.has_spec()) {
                                          exports.erase(ref);
                                          continue;
                                        }
                                        auto& live = exports[ref];
                                        live.nqn = volume.spec().nqn();
                                        live.spec = volume.spec();
                                        live.hosts.clear();
                                        for (const auto& initiator : volume.initiators())
                                          live.hosts.insert(initiator.host_nqn());
                                      }
                                      if (request.complete()) {
                                        close_strays(request);
                                        gated = false;
                                      }
                                      return response;
                                    });
  }
  void call(pb::SeedMarksRequest request, Deadline, Answer<pb::SeedMarksResponse> done) override {
    run<pb::SeedMarksResponse>("Seed", std::move(done), [this, request]() -> Result<pb::SeedMarksResponse> {
      log.push_back("Seed " + std::to_string(request.marks_size()));
      for (const auto& mark : request.marks()) {
        auto& own = marks[mark.agent_volume_id()];
        if (own.uid == mark.volume_uid() && own.generation >= mark.generation()) continue;
        own.uid = mark.volume_uid();
        own.generation = mark.generation();
      }
      seeded = true;
      return pb::SeedMarksResponse();
    });
  }

 private:
  /// What a complete list does not name is closed.
  void close_strays(const pb::ReconcileStateRequest& request) {
    std::set<std::string> named;
    for (const auto& volume : request.volumes()) named.insert(volume.volume().agent_volume_id());
    std::erase_if(exports, [&](const auto& each) { return !named.contains(each.first); });
  }

  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& [ref, backend] : backends) sum += backend.bytes;
    return sum;
  }

  template <class Response, class Act>
  void run(const std::string& rpc, Answer<Response> done, Act act) {
    const std::lock_guard lock(mutex);
    const Fate now = fate ? fate(rpc) : Fate::normal;
    // A caller that is never answered, not one whose call was dropped.
    if (now == Fate::lost_before || now == Fate::lost_after) unanswered.emplace_back([done] {});
    if (now == Fate::lost_before) return;
    if (now == Fate::unavailable) return done(fail(Reason::agent_unavailable, "agent cannot be reached"));
    const auto refusal = refuse.find(rpc);
    Result<Response> result =
        refusal == refuse.end() ? act() : Result<Response>(tl::unexpected(refusal->second));
    if (now == Fate::lost_after) return;
    done(std::move(result));
  }

  Result<void> check_seeded() const {
    if (seeded) return {};
    return fail(Reason::epoch_unknown, "marks were lost");
  }

  /// Admission of a grant or revoke; advances the mark.
  Result<void> grant(const std::string& rpc, const std::string& ref, const pb::FencingToken& token) {
    if (auto known = check_seeded(); !known) return known;
    auto& mark = marks[ref];
    const std::map<std::string, std::string> details{{"uid", mark.uid},
                                                     {"generation", std::to_string(mark.generation)}};
    if (token.volume_uid().empty() || token.generation() == 0) return fail(Reason::token_missing, "no token");
    if (mark.retired.contains(token.volume_uid())) return fail(Reason::lifecycle_retired, "retired");
    if (mark.uid.empty() || (mark.uid != token.volume_uid() && mark.state == MarkState::ended)) {
      if (!mark.uid.empty()) mark.retired.insert(mark.uid);
      mark.uid = token.volume_uid();
      mark.generation = token.generation();
      mark.state = MarkState::open;
    } else if (mark.uid != token.volume_uid()) {
      return fail(Reason::foreign_lifecycle, "other uid", details);
    } else if (mark.state != MarkState::open) {
      return fail(mark.state == MarkState::ended ? Reason::lifecycle_ended : Reason::lifecycle_ending, "over",
                  details);
    } else if (token.generation() < mark.generation) {
      return fail(Reason::stale_generation, "stale generation", details);
    }
    mark.generation = token.generation();
    ++sequence;
    log.push_back(rpc + " " + ref + " " + std::to_string(token.generation()));
    return {};
  }

  /// True: run it. False: it was done already.
  Result<bool> destroy(const std::string& ref, const pb::FencingToken& token) {
    auto& mark = marks[ref];
    if (mark.uid == token.volume_uid() && mark.state != MarkState::open) {
      if (mark.generation != token.generation())
        return fail(mark.state == MarkState::ended ? Reason::lifecycle_ended : Reason::lifecycle_ending,
                    "other generation", {{"uid", mark.uid}});
      return mark.state == MarkState::destroying;
    }
    if (auto admitted = grant("Delete", ref, token); !admitted) return tl::unexpected(admitted.error());
    mark.state = MarkState::destroying;
    return true;
  }
};

}  // namespace pillar::controller::testing
