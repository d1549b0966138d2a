#pragma once
// How actors are asked: one-way messages that carry their own answer slot. The slot answers by itself when it
// is dropped, so a killed actor, a lost mailbox or a thrown exception can never leave a caller waiting.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar {

/// Answer slot of one request. Copyable, callable from any thread; the first answer wins. When the last copy
/// goes away unanswered, the caller gets ACTOR_RESTARTED (UNAVAILABLE).
template <class T>
class Reply {
 public:
  using Sink = std::function<void(Result<T>)>;

  Reply() = default;
  explicit Reply(Sink sink) : box_(std::make_shared<Box>(std::move(sink))) {}

  /// Answers the caller. Later answers are ignored.
  void operator()(Result<T> result) const {
    if (box_) box_->finish(std::move(result));
  }
  /// True once an answer was given.
  bool answered() const { return !box_ || box_->done.load(); }

 private:
  struct Box {
    explicit Box(Sink s) : sink(std::move(s)) {}
    Box(const Box&) = delete;
    Box& operator=(const Box&) = delete;
    ~Box() {
      finish(fail(Reason::actor_restarted,
                  "the component that handled this call was restarted; repeat the call"));
    }
    void finish(Result<T> result) {
      if (!done.exchange(true)) sink(std::move(result));
    }
    Sink sink;
    std::atomic<bool> done{false};
  };
  std::shared_ptr<Box> box_;
};

/// A request with its deadline and answer slot. `request` is shared, never changed.
template <class Request, class Response>
struct Call {
  using request_type = Request;
  using response_type = Response;

  std::shared_ptr<const Request> request;
  Deadline deadline;
  Reply<Response> reply;
};

/// "No content" as a response.
struct Done {};

}  // namespace pillar
