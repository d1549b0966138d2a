#pragma once
// Lets calls travel through CAF mailboxes. The only header of messages/ that knows CAF.

#include <string>
#include <type_traits>

#include <caf/allowed_unsafe_message_type.hpp>

#include "messages/call.hpp"

namespace pillar {

/// A message for the actor of one key; what a registry accepts (actors/runtime/registry.hpp).
template <class M>
struct Routed {
  std::string key;
  M message;
};

}  // namespace pillar

namespace caf {

// Messages never leave the process, so none of them needs CAF's serialisation.
template <class Request, class Response>
struct allowed_unsafe_message_type<pillar::Call<Request, Response>> : std::true_type {};
template <class M>
struct allowed_unsafe_message_type<pillar::Routed<M>> : std::true_type {};

}  // namespace caf
