#include "actors/runtime/metrics.hpp"

#include <sstream>

#include <prometheus/text_serializer.h>

namespace pillar::runtime {

namespace {

prometheus::ClientMetric labelled(const Metrics::Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

prometheus::MetricFamily family(std::string name, std::string help, prometheus::MetricType type) {
  prometheus::MetricFamily made;
  made.name = std::move(name);
  made.help = std::move(help);
  made.type = type;
  return made;
}

}  // namespace

void Gauge::add(double v) {
  double seen = value_.load(std::memory_order_relaxed);
  while (!value_.compare_exchange_weak(seen, seen + v, std::memory_order_relaxed)) {
  }
}

void Histogram::observe(double seconds) {
  std::size_t i = 0;
  while (i < k_bounds.size() && seconds > k_bounds[i]) ++i;
  buckets_[i].fetch_add(1, std::memory_order_relaxed);
  if (seconds > 0) sum_ns_.fetch_add(static_cast<std::uint64_t>(seconds * 1e9), std::memory_order_relaxed);
}

std::uint64_t Histogram::count() const {
  std::uint64_t total = 0;
  for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
  return total;
}

void Histogram::collect(prometheus::ClientMetric& into) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    total += buckets_[i].load(std::memory_order_relaxed);
    const double bound = i < k_bounds.size() ? k_bounds[i] : std::numeric_limits<double>::infinity();
    into.histogram.bucket.push_back({total, bound});
  }
  into.histogram.sample_count = total;
  into.histogram.sample_sum = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
}

template <class M>
M& Metrics::series(std::map<Labels, std::unique_ptr<M>> Family::*member, prometheus::MetricType type,
                   const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  auto& found = families_[name];
  if (found.help.empty()) {
    found.help = help;
    found.type = type;
  }
  auto& all = found.*member;
  auto it = all.find(labels);
  if (it == all.end()) {
    Labels used = labels;
    if (all.size() >= k_max_series) {
      for (auto& label : used) label.second = "other";
    }
    it = all.try_emplace(std::move(used)).first;
    if (!it->second) it->second = std::make_unique<M>();
  }
  return *it->second;
}

Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  return series(&Family::counters, prometheus::MetricType::Counter, name, help, labels);
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return series(&Family::gauges, prometheus::MetricType::Gauge, name, help, labels);
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help, const Labels& labels) {
  return series(&Family::histograms, prometheus::MetricType::Histogram, name, help, labels);
}

ActorStats& Metrics::actor(const std::string& kind) {
  const std::lock_guard lock(mutex_);
  auto& stats = actors_[kind];
  if (!stats) stats = std::make_unique<ActorStats>();
  return *stats;
}

void Metrics::add_collector(std::function<std::vector<prometheus::MetricFamily>()> collect) {
  const std::lock_guard lock(mutex_);
  collectors_.push_back(std::move(collect));
}

void Metrics::collect_actors(std::vector<prometheus::MetricFamily>& out) const {
  using prometheus::MetricType;
  auto depth =
      family("pillar_csi_actor_mailbox_depth", "Messages waiting or being handled", MetricType::Gauge);
  auto messages = family("pillar_csi_actor_messages_total", "Messages handled", MetricType::Counter);
  auto handling =
      family("pillar_csi_actor_handling_seconds", "Time to handle one message", MetricType::Histogram);
  auto restarts =
      family("pillar_csi_actor_restarts_total", "Actors started again after a crash", MetricType::Counter);
  auto dropped = family("pillar_csi_actor_dropped_expired_total",
                        "Requests dropped because their deadline had passed", MetricType::Counter);
  auto failures = family("pillar_csi_actor_failures_total", "Exceptions and errors that reached an actor",
                         MetricType::Counter);
  const auto count = [](prometheus::MetricFamily& into, const prometheus::ClientMetric& base,
                        const Counter& value) {
    auto metric = base;
    metric.counter.value = static_cast<double>(value.value());
    into.metric.push_back(std::move(metric));
  };
  for (const auto& [kind, stats] : actors_) {
    const auto base = labelled({{"kind", kind}});
    auto metric = base;
    metric.gauge.value = static_cast<double>(stats->mailbox_depth.load(std::memory_order_relaxed));
    depth.metric.push_back(std::move(metric));
    metric = base;
    stats->handling.collect(metric);
    handling.metric.push_back(std::move(metric));
    count(messages, base, stats->messages);
    count(restarts, base, stats->restarts);
    count(dropped, base, stats->dropped_expired);
    count(failures, base, stats->failures);
  }
  for (auto* made : {&depth, &messages, &handling, &restarts, &dropped, &failures}) {
    if (!made->metric.empty()) out.push_back(std::move(*made));
  }
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::vector<prometheus::MetricFamily> out;
  std::vector<std::function<std::vector<prometheus::MetricFamily>()>> collectors;
  {
    const std::lock_guard lock(mutex_);
    collect_actors(out);
    for (const auto& [name, found] : families_) {
      auto made = family(name, found.help, found.type);
      for (const auto& [labels, value] : found.counters) {
        made.metric.push_back(labelled(labels));
        made.metric.back().counter.value = static_cast<double>(value->value());
      }
      for (const auto& [labels, value] : found.gauges) {
        made.metric.push_back(labelled(labels));
        made.metric.back().gauge.value = value->value();
      }
      for (const auto& [labels, value] : found.histograms) {
        made.metric.push_back(labelled(labels));
        value->collect(made.metric.back());
      }
      out.push_back(std::move(made));
    }
    collectors = collectors_;
  }
  for (const auto& collect : collectors) {
    auto more = collect();
    std::move(more.begin(), more.end(), std::back_inserter(out));
  }
  return out;
}

std::string Metrics::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, Collect());
  return out.str();
}

}  // namespace pillar::runtime
