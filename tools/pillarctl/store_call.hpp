#pragma once
// The store is asynchronous; a command line waits.

#include <future>
#include <utility>

#include "messages/error.hpp"

namespace pillar::pillarctl {

/// Runs an asynchronous store call to its answer; the store answers every call.
template <class T, class F>
Result<T> answer_of(F call) {
  std::promise<Result<T>> answer;
  auto future = answer.get_future();
  call([&answer](Result<T> result) { answer.set_value(std::move(result)); });
  return future.get();
}

}  // namespace pillar::pillarctl
