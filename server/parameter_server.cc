#include "server/parameter_server.h"

#include <utility>

#include "common/status.h"
#include "server/server_core.h"

namespace starring {

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(Options options) {
  auto core = std::make_unique<Core>(std::move(options));
  RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<ParameterServer>(new ParameterServer(std::move(core)));
}

ParameterServer::ParameterServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}

ParameterServer::~ParameterServer() = default;

const std::string& ParameterServer::address() const { return core_->address(); }

absl::Status ParameterServer::Wait() { return core_->Wait(); }

void ParameterServer::Interrupt() { core_->Interrupt(); }

}  // namespace starring
