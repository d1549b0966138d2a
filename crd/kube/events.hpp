#pragma once
// Events (events.k8s.io/v1): what an operator must act on, shown by `kubectl describe` of the object it is
// about. Repetitions become a series of the first event instead of more objects, and writing them never
// delays or fails what they report.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "crd/kube/client.hpp"

namespace pillar::crd::kube {

/// What an event is about.
struct EventSubject {
  std::string api_version;
  std::string kind;
  std::string name;
  std::string name_space;  ///< empty: cluster-scoped
  std::string uid;
};
/// The subject that one of our objects is.
EventSubject subject_of(const Object& object);

struct Event {
  EventSubject regarding;
  bool warning = true;  ///< type Warning or Normal
  std::string reason;   ///< CamelCase
  std::string action;   ///< what was attempted, CamelCase
  std::string note;     ///< object, value, remedy; cut to 1024 bytes
};

struct EventOptions {
  std::string controller = "pillar-csi.bhyoo.com/pillar-controller";  ///< who reports
  std::string instance;                                               ///< pod or host name, at most 128 bytes
  /// Repetitions within this time join the series; the first one after it begins anew.
  std::chrono::milliseconds series{6 * 60 * 1000};
  /// A running series is written at most so often.
  std::chrono::milliseconds series_pause{60 * 1000};
  std::size_t subjects = 1024;  ///< series kept in memory; the oldest is forgotten
  int burst = 25;               ///< new events that may be written at once, then one a second
};

/// Writes events. Every method may be called from any thread and returns at once.
class EventRecorder {
 public:
  EventRecorder(std::shared_ptr<Client> client, EventOptions options);
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;
  /// What was not yet written is lost; events are hints.
  ~EventRecorder();

  void record(Event event);

  /// Counters since the recorder was made.
  struct Stats {
    std::uint64_t written = 0;  ///< events and series updates the server has taken
    std::uint64_t failed = 0;   ///< refused by the server or lost
    std::uint64_t dropped = 0;  ///< over the burst
  };
  Stats stats() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace pillar::crd::kube
