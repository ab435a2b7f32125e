// The server's command line, resolved and checked.
#ifndef STARRING_SERVER_SERVER_OPTIONS_H_
#define STARRING_SERVER_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/flags/flag_table.h"
#include "common/security/transport_security.h"

namespace starring {

struct ServerOptions {
  std::string listen;
  int shard = 0;
  int shard_count = 1;
  std::string run_id;  // as ParameterServer::Options has it
  TransportSecurity security;
  bool insecure = false;
  int64_t memory_bytes_max = 0;  // 0: what is free
  absl::Duration join_deadline = absl::InfiniteDuration();
  std::string trace;     // file; empty: none
  int metrics_port = 0;  // of this shard, 0: a free one; -1: none
  std::string metrics_address;
  std::string port_file;  // empty: none
};

// Every flag of the server.
const FlagTable& ServerFlags();

// Reads the files of the secret and the certificates too. InvalidArgument names the flag, its value and the way out.
absl::StatusOr<ServerOptions> ParseServerOptions(int argc, const char* const* argv);

}  // namespace starring

#endif  // STARRING_SERVER_SERVER_OPTIONS_H_
