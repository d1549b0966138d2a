#pragma once
// Metrics: own atomics, collected into Prometheus families on scrape. Every label value comes from a fixed
// set; a family refuses to grow beyond k_max_series and counts the rest under "other".

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace pillar::runtime {

/// Monotonic count.
class Counter {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// A value that goes up and down.
class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  void add(double v);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// Distribution of durations in seconds over fixed bounds (0.1 ms ... 60 s).
class Histogram {
 public:
  static constexpr std::array<double, 12> k_bounds{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05,
                                                   0.1,    0.5,    1,     5,     20,   60};
  void observe(double seconds);
  std::uint64_t count() const;
  void collect(prometheus::ClientMetric& into) const;

 private:
  std::array<std::atomic<std::uint64_t>, k_bounds.size() + 1> buckets_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

/// What is measured of all actors of one kind (docs/interfaces.md section 7).
struct ActorStats {
  std::atomic<std::int64_t> mailbox_depth{0};
  Counter messages;
  Histogram handling;
  Counter restarts;
  Counter dropped_expired;
  Counter failures;  ///< exceptions and errors that reached the actor's handlers
};

/// The metric registry of one process. Thread-safe. References it hands out live as long as it does.
class Metrics final : public prometheus::Collectable {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  /// Most label combinations of one name.
  static constexpr std::size_t k_max_series = 256;

  /// The series of `name` with `labels`, created on first use. Names must end as Prometheus wants them
  /// (_total, _seconds, ...); `help` of the first use stays.
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels = {});
  /// The stats of an actor kind, for example "agent/volume".
  ActorStats& actor(const std::string& kind);
  /// Adds families computed at scrape time (pool sizes, sysfs states); `collect` must not block.
  void add_collector(std::function<std::vector<prometheus::MetricFamily>()> collect);

  std::vector<prometheus::MetricFamily> Collect() const override;
  /// Prometheus text exposition of everything.
  std::string text() const;

 private:
  struct Family {
    std::string help;
    prometheus::MetricType type{};
    std::map<Labels, std::unique_ptr<Counter>> counters;
    std::map<Labels, std::unique_ptr<Gauge>> gauges;
    std::map<Labels, std::unique_ptr<Histogram>> histograms;
  };
  template <class M>
  M& series(std::map<Labels, std::unique_ptr<M>> Family::*member, prometheus::MetricType type,
            const std::string& name, const std::string& help, const Labels& labels);
  void collect_actors(std::vector<prometheus::MetricFamily>& out) const;

  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
  std::map<std::string, std::unique_ptr<ActorStats>> actors_;
  std::vector<std::function<std::vector<prometheus::MetricFamily>()>> collectors_;
};

}  // namespace pillar::runtime
