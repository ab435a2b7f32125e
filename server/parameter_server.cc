#include "server/parameter_server.h"

#include <utility>

#include "common/base/status.h"
#include "server/server_core.h"

namespace starring {

// Core is in a header of its own, so that those who only start a server (the program, tests, benchmarks) include no
// gRPC.
absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(Options options) {
  // Whatever can fail is in Core::Start. A core whose Start has failed has no thread, and its destructor ends nothing.
  auto core = std::make_unique<Core>(std::move(options));
  RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<ParameterServer>(new ParameterServer(std::move(core)));
}

ParameterServer::ParameterServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}

ParameterServer::~ParameterServer() = default;

const std::string& ParameterServer::address() const { return core_->address(); }

absl::Status ParameterServer::Wait() { return core_->Wait(); }

// This sets a flag, at which the polling thread looks ten times a second. So the thread that waits for signals takes no
// lock here.
void ParameterServer::Interrupt() { core_->Interrupt(); }

}  // namespace starring
