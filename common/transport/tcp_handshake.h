// How two ranks open a connection: the one that dials introduces itself, and both prove that they know the job's
// secret.
//
//   dials                                              is dialled
//   kHello      its rank, its job, and a nonce   ─▶
//                                                ◀─    kChallenge  a nonce, HMAC(secret, "is dialled", hello, nonce)
//   kProof      HMAC(secret, "dials", hello, nonce) ─▶
//                                                ◀─    kWelcome, or kRefusal with the reason
//
// The secret never travels. Each proof covers both nonces and all that the hello says, and names its side, so that it
// cannot be used again, elsewhere, or by the other side. Without a secret the codes have an empty key and prove
// nothing. What follows is neither encrypted nor authenticated: a host between the two could take over the connection.
//
// A stranger costs little: a frame before the welcome has at most kTcpHelloBytesMax bytes, and the caller allows
// kHelloDeadlineMs for all of them.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_HANDSHAKE_H_
#define STARRING_COMMON_TRANSPORT_TCP_HANDSHAKE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/host/dial.h"
#include "common/transport/tcp_frames.h"

namespace starring {

// The rank that dials, and the purpose of the connection.
struct TcpHello {
  enum class Purpose : uint32_t {
    kRegister = 1,  // with rank 0: joins the job
    kMessages = 2,  // the two connections of a TcpTransport::Link
    kNotices = 3,
  };
  Purpose purpose = Purpose::kRegister;
  int rank = 0;
  int to_rank = 0;  // the rank that it means to reach
  int world_size = 0;
  std::string run_id;   // at most kRunIdBytesMax bytes
  std::string address;  // kRegister: where the rank listens, host:port; at most kTcpAddressBytesMax bytes
};

// The side that dials.
class TcpDialer {
 public:
  // `token` is the job's (JobSecret::token), or empty.
  TcpDialer(Socket socket, const TcpHello& hello, std::string token);

  TcpFrameConnection& connection() { return connection_; }

  // Goes on as far as what has arrived allows; true: welcome. Unavailable if the peer is gone; Unauthenticated if it
  // does not know the secret; or the status with which it refuses. Errors complete a sentence that begins with the
  // peer's name.
  absl::StatusOr<bool> Advance();

 private:
  absl::Status OnChallenge(const std::string& payload);

  TcpFrameConnection connection_;
  const std::string token_;
  std::string hello_;  // as it was sent
  bool is_challenged_ = false;
  bool is_genuine_ = false;
};

// The side that is dialled.
class TcpDoorkeeper {
 public:
  TcpDoorkeeper(Socket socket, std::string token) : connection_(std::move(socket)), token_(std::move(token)) {}

  TcpFrameConnection& connection() { return connection_; }

  // Goes on as far as what has arrived allows; true: hello() is proved. The caller then welcomes or refuses. Errors as
  // of TcpDialer; where the peer can be told, it has been.
  absl::StatusOr<bool> Advance();

  // REQUIRES: Advance has returned true.
  const TcpHello& hello() const { return hello_; }

 private:
  absl::Status OnHello(const std::string& payload);
  absl::Status OnProof(const std::string& payload);

  TcpFrameConnection connection_;
  const std::string token_;
  TcpHello hello_;
  std::string hello_bytes_;  // empty until the hello has arrived
  std::string nonce_;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_HANDSHAKE_H_
