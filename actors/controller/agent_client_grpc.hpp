#pragma once
// AgentClient over gRPC. This header needs no gRPC headers; the .cpp is the only file of the controller that
// does.

#include "actors/controller/agent_client.hpp"

namespace pillar::controller {

/// Clients with one HTTP/2 channel per agent, in plaintext. Names are resolved by gRPC whenever it connects;
/// reconnects back off from 1 s to 10 s.
AgentClientFactory grpc_agent_factory();

}  // namespace pillar::controller
