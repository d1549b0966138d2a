#include "crd/kube/lease.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>

#include <nlohmann/json.hpp>

#include "crd/kube/clock.hpp"
#include "crd/kube/http.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string text_at(const json& value, const char* part, const char* key) {
  if (!value.contains(part) || !value[part].is_object()) return {};
  const auto it = value[part].find(key);
  return it != value[part].end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::int64_t number_at(const json& value, const char* part, const char* key) {
  if (!value.contains(part) || !value[part].is_object()) return 0;
  const auto it = value[part].find(key);
  return it != value[part].end() && it->is_number_integer() ? it->get<std::int64_t>() : 0;
}

}  // namespace

/// Lives on the client thread, except for held_until_.
class LeaseHolder::Impl : public std::enable_shared_from_this<LeaseHolder::Impl> {
 public:
  Impl(std::shared_ptr<Client> client, LeaseOptions options, Handler handler)
      : client_(std::move(client)), options_(std::move(options)), handler_(std::move(handler)) {
    if (options_.name_space.empty()) options_.name_space = client_->name_space();
    path_ = "/apis/coordination.k8s.io/v1/namespaces/" + encode(options_.name_space) + "/leases";
  }

  bool held() const { return Clock::now().time_since_epoch().count() < held_until_.load(); }

  /// Renews what we hold, looks at what we do not.
  void turn() {
    if (stopped_) return;
    ++turn_;
    holding_&& lease_ ? write(*lease_) : read();
  }

  void stop(const std::shared_ptr<std::promise<void>>& released) {
    stopped_ = true;
    handler_ = {};
    if (!holding_ || !lease_) return released->set_value();
    auto freed = *lease_;
    freed["spec"]["holderIdentity"] = "";
    freed["spec"]["leaseDurationSeconds"] = 1;
    freed["spec"]["renewTime"] = micro_now();
    holding_ = false;
    held_until_ = 0;
    put(freed, [released](const Result<json>&) { released->set_value(); });
  }

 private:
  void read() {
    Request request;
    request.path = path_ + "/" + encode(options_.name);
    request.subject = "Lease/" + options_.name;
    client_->call(std::move(request), [weak = weak_from_this(), turn = turn_](Result<json> answer) {
      if (const auto self = weak.lock()) self->seen(turn, std::move(answer));
    });
  }

  void seen(std::uint64_t turn, Result<json> answer) {
    if (stopped_ || turn != turn_) return;
    if (!answer && answer.error().reason == Reason::not_found) return create();
    if (!answer) return failed(answer.error());
    const auto version = text_at(*answer, "metadata", "resourceVersion");
    if (version != seen_version_) {
      seen_version_ = version;
      seen_at_ = Clock::now();
    }
    const auto holder = text_at(*answer, "spec", "holderIdentity");
    // Other clocks are not ours: what counts is how long we have seen no renewal.
    const auto promised = milliseconds(number_at(*answer, "spec", "leaseDurationSeconds") * 1000);
    const bool over = Clock::now() - seen_at_ > std::max(promised, milliseconds(1000));
    if (holder.empty() || holder == options_.identity || over) return write(*answer);
    if (holding_) lost(fail(Reason::conflict, "Lease/" + options_.name + " is held by " + holder).value());
    later();
  }

  json spec() const {
    return {{"holderIdentity", options_.identity},
            {"leaseDurationSeconds", std::max<std::int64_t>(options_.duration.count() / 1000, 1)},
            {"renewTime", micro_now()}};
  }

  void create() {
    json lease{{"apiVersion", "coordination.k8s.io/v1"},
               {"kind", "Lease"},
               {"metadata", {{"name", options_.name}, {"namespace", options_.name_space}}},
               {"spec", spec()}};
    lease["spec"]["acquireTime"] = lease["spec"]["renewTime"];
    Request request;
    request.method = "POST";
    request.path = path_;
    request.subject = "Lease/" + options_.name;
    request.body = lease.dump();
    send(std::move(request));
  }

  /// Takes or renews the lease that `lease` was read as; a version that has changed means that others did.
  void write(json lease) {
    const bool ours = text_at(lease, "spec", "holderIdentity") == options_.identity;
    const auto transitions = number_at(lease, "spec", "leaseTransitions") + (ours ? 0 : 1);
    lease["spec"].update(spec());
    lease["spec"]["leaseTransitions"] = transitions;
    if (!ours) lease["spec"]["acquireTime"] = lease["spec"]["renewTime"];
    Request request;
    request.method = "PUT";
    request.path = path_ + "/" + encode(options_.name);
    request.subject = "Lease/" + options_.name;
    request.body = lease.dump();
    send(std::move(request));
  }

  void put(const json& lease, Client::Done done) {
    Request request;
    request.method = "PUT";
    request.path = path_ + "/" + encode(options_.name);
    request.subject = "Lease/" + options_.name;
    request.body = lease.dump();
    client_->call(std::move(request), std::move(done));
  }

  void send(Request request) {
    const auto begin = Clock::now();  // others count from what they see, which is later
    client_->call(std::move(request), [weak = weak_from_this(), turn = turn_, begin](Result<json> answer) {
      if (const auto self = weak.lock()) self->written(turn, begin, std::move(answer));
    });
  }

  void written(std::uint64_t turn, Clock::time_point begin, Result<json> answer) {
    if (stopped_ || turn != turn_) return;
    if (!answer) {
      lease_.reset();  // what it is now has to be read
      return failed(answer.error());
    }
    lease_ = std::move(*answer);
    renewed_ = begin;
    held_until_ = (begin + options_.give_up).time_since_epoch().count();
    if (!holding_) {
      holding_ = true;
      guard();
      if (handler_.on_acquired) handler_.on_acquired();
    }
    later();
  }

  void failed(const Error& error) {
    last_error_ = error;
    // A lost race is looked at again at once; what is out of reach, after the usual pause.
    if (error.reason == Reason::conflict || error.reason == Reason::already_exists)
      return after(milliseconds(50));
    after(std::min(options_.renew, milliseconds(1000)));
  }

  /// Ends our term by our own clock when renewals do not get through.
  void guard() {
    const auto left = std::chrono::duration_cast<milliseconds>(renewed_ + options_.give_up - Clock::now());
    post_after(std::max(left, milliseconds(1)), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->stopped_ || !self->holding_) return;
      if (Clock::now() - self->renewed_ < self->options_.give_up) return self->guard();
      self->lost(self->last_error_.value_or(
          fail(Reason::deadline_exceeded, "Lease/" + self->options_.name + " could not be renewed in time")
              .value()));
    });
  }

  void lost(const Error& error) {
    holding_ = false;
    held_until_ = 0;
    lease_.reset();
    if (handler_.on_lost) handler_.on_lost(error);
  }

  void later() { after(options_.renew); }
  void after(milliseconds delay) {
    post_after(delay, [weak = weak_from_this(), turn = turn_] {
      const auto self = weak.lock();
      if (self && self->turn_ == turn) self->turn();
    });
  }

  std::shared_ptr<Client> client_;
  LeaseOptions options_;
  Handler handler_;
  std::string path_;
  std::uint64_t turn_ = 0;  ///< answers to earlier turns do not count
  std::optional<json> lease_;
  std::optional<Error> last_error_;
  bool holding_ = false;
  bool stopped_ = false;
  Clock::time_point renewed_;
  std::string seen_version_;
  Clock::time_point seen_at_;
  std::atomic<Clock::rep> held_until_{0};
};

LeaseHolder::LeaseHolder(std::shared_ptr<Client> client, LeaseOptions options, Handler handler)
    : impl_(std::make_shared<Impl>(std::move(client), std::move(options), std::move(handler))) {
  post([impl = impl_] { impl->turn(); });
}

LeaseHolder::~LeaseHolder() {
  const auto released = std::make_shared<std::promise<void>>();
  auto waiting = released->get_future();
  run_on_client_thread([&] { impl_->stop(released); });
  if (!on_client_thread()) waiting.wait_for(std::chrono::seconds(1));
}

bool LeaseHolder::held() const { return impl_->held(); }

}  // namespace pillar::crd::kube
