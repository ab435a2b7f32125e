// The Check calls of a worker to one server, before training.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_
#define STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/transport_security.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/check.pb.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {

class StarCheckClient {
 public:
  struct Options {
    std::string address;
    TransportSecurity security;  // as the server has it
    int rank = 0;
    uint64_t worker_id = 0;  // unique to this process; together with the rank it signs this worker's notes
  };
  // Connects with the first call.
  explicit StarCheckClient(Options options);
  // Leaves the board, if it was used: the server would otherwise keep the notes until it forgets this worker.
  ~StarCheckClient();

  // Each call fails with DeadlineExceeded at `end`, or earlier with the reason why the server cannot be reached or
  // refuses.
  //
  // The server's facts; sets the round trip of `link`, and the clock.
  absl::StatusOr<v1::ProcessFacts> Ask(absl::Time end, v1::LinkReport& link);
  // Bytes per second to the server, measured for `seconds` or kCheckBandwidthBytesMax of limits.h. The server then
  // knows this worker, as after UseBoard.
  absl::StatusOr<double> MeasureBandwidth(double seconds, absl::Time end);
  // The server's board of notes: server/door/check_service.h. `request` says what to put and to get.
  absl::StatusOr<v1::CheckReply> UseBoard(v1::CheckRequest request, absl::Time end);

 private:
  absl::Status ToStatus(const grpc::Status& status) const;
  absl::Status Prove(absl::Time end);
  absl::StatusOr<v1::CheckReply> Call(v1::CheckRequest request, absl::Time end);
  absl::StatusOr<v1::CheckReply> Send(const v1::CheckRequest& request, absl::Time end,
                                      std::string* peer = nullptr) const;

  const Options options_;
  const std::unique_ptr<v1::ParameterServer::Stub> stub_;
  RequestSigner signer_;
  bool is_at_board_ = false;
  std::string peer_;  // the server's address in the connection of the last call, as common/network/address.h spells it
};

// "1.51.1"
std::string GrpcVersion();
// The protocol's version, common/wire/exchange_message.h.
int StarWireVersion();

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_
