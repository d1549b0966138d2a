#include <doctest/doctest.h>

#include <thread>

#include "actors/runtime/metrics.hpp"

using namespace pillar::runtime;

namespace {
bool has_line(const std::string& text, const std::string& line) {
  return text.find(line + "\n") != std::string::npos;
}
}  // namespace

TEST_CASE("metrics: actor stats in Prometheus text") {
  Metrics metrics;
  auto& stats = metrics.actor("agent/volume");
  CHECK(&stats == &metrics.actor("agent/volume"));
  stats.mailbox_depth = 3;
  stats.messages.add(5);
  stats.handling.observe(0.002);
  stats.handling.observe(100);
  stats.restarts.add();
  stats.dropped_expired.add(2);
  const auto text = metrics.text();
  CHECK(has_line(text, "# TYPE pillar_csi_actor_mailbox_depth gauge"));
  CHECK(has_line(text, "pillar_csi_actor_mailbox_depth{kind=\"agent/volume\"} 3"));
  CHECK(has_line(text, "pillar_csi_actor_messages_total{kind=\"agent/volume\"} 5"));
  CHECK(has_line(text, "pillar_csi_actor_restarts_total{kind=\"agent/volume\"} 1"));
  CHECK(has_line(text, "pillar_csi_actor_dropped_expired_total{kind=\"agent/volume\"} 2"));
  CHECK(has_line(text, "pillar_csi_actor_handling_seconds_count{kind=\"agent/volume\"} 2"));
  CHECK(has_line(text, "pillar_csi_actor_handling_seconds_bucket{kind=\"agent/volume\",le=\"0.001\"} 0"));
  CHECK(has_line(text, "pillar_csi_actor_handling_seconds_bucket{kind=\"agent/volume\",le=\"0.005\"} 1"));
  CHECK(has_line(text, "pillar_csi_actor_handling_seconds_bucket{kind=\"agent/volume\",le=\"+Inf\"} 2"));
}

TEST_CASE("metrics: counters, gauges, histograms and collectors") {
  Metrics metrics;
  metrics.counter("pillar_csi_csi_requests_total", "CSI calls", {{"method", "CreateVolume"}, {"code", "OK"}})
      .add(2);
  metrics.gauge("pillar_csi_volumes", "Volumes", {{"phase", "Ready"}}).set(7);
  metrics.histogram("pillar_csi_exec_duration_seconds", "Commands", {{"executable", "lvs"}}).observe(0.5);
  metrics.add_collector([] {
    prometheus::MetricFamily family;
    family.name = "pillar_csi_pool_size_bytes";
    family.help = "Pool size";
    family.type = prometheus::MetricType::Gauge;
    family.metric.emplace_back().gauge.value = 42;
    return std::vector<prometheus::MetricFamily>{family};
  });
  const auto text = metrics.text();
  CHECK(has_line(text, "pillar_csi_csi_requests_total{method=\"CreateVolume\",code=\"OK\"} 2"));
  CHECK(has_line(text, "pillar_csi_volumes{phase=\"Ready\"} 7"));
  CHECK(has_line(text, "pillar_csi_exec_duration_seconds_sum{executable=\"lvs\"} 0.5"));
  CHECK(has_line(text, "pillar_csi_pool_size_bytes 42"));
}

TEST_CASE("metrics: a family does not grow without bound") {
  Metrics metrics;
  for (std::size_t i = 0; i < 2 * Metrics::k_max_series; ++i) {
    metrics.counter("x_total", "x", {{"volume", std::to_string(i)}}).add();
  }
  CHECK(has_line(metrics.text(), "x_total{volume=\"other\"} " + std::to_string(Metrics::k_max_series)));
}

TEST_CASE("metrics: used from many threads") {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        metrics.counter("x_total", "x", {{"code", std::to_string(i % 5)}}).add();
        metrics.gauge("y", "y").add(1);
        if (i % 100 == 0) metrics.text();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(metrics.gauge("y", "y").value() == 2000);
}
