// How two ranks open a connection: the one that dials introduces itself, and both prove that they know the job's
// secret.
//
//   dials                                              is dialled
//   kHello      its rank, its job, a nonce,
//               HMAC(key, "greets", all that)    ─▶
//                                               (◀─    kBeginTls, if both sides have --tls: the rest is encrypted)
//                                                ◀─    kChallenge  a nonce, HMAC(key, "is dialled", hello, nonce)
//   kProof      HMAC(key, "dials", hello, nonce) ─▶
//                                                ◀─    kWelcome, or kRefusal with the reason
//
// The *key* follows from the job's secret (JobSecret::KeyFor). Neither travels. The side that is dialled proves itself
// first. Each proof covers both nonces and all that the hello says, and names its side, so that it cannot be used
// again, elsewhere, or by the other side. Without a secret the codes have an empty key and prove nothing.
//
// With TLS the proofs travel on the encrypted connection, and so tie the hello to it. Without, what follows the proofs
// is neither encrypted nor authenticated: a host between the two could take over the connection. A hello says whether
// its rank has --tls. If only one side has, both prove themselves in the clear, and the side that is dialled refuses.
//
// The hello's own code proves little: a hello that was recorded has it, too. It tells a stranger at once from a rank,
// so that a stranger waits for nothing (TcpHellosHeard).
//
// A stranger costs little: a frame before the welcome has at most kTcpHelloBytesMax bytes, and the caller allows
// kHelloDeadlineMs for all of them. TLS, whose signatures cost more than all frames, begins after a hello of the job.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_HANDSHAKE_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_HANDSHAKE_H_

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_frames.h"
#include "common/transport/tcp/tls_session.h"

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
  bool has_tls = false;
  std::string run_id;   // at most kRunIdBytesMax bytes
  std::string address;  // kRegister: where the rank listens, host:port; at most kTcpAddressBytesMax bytes
};

// The side that dials.
class TcpDialer {
 public:
  // `token` is the job's key, or empty. With `tls`, which outlives it, the connection is encrypted or fails;
  // hello.has_tls says so. REQUIRES: with `tls` there is a token.
  TcpDialer(Socket socket, const TcpHello& hello, std::string token, const TlsContext* tls = nullptr);

  TcpFrameConnection& connection() { return connection_; }

  // Goes on as far as what has arrived allows; true: welcome. Unavailable if the peer is gone; Unauthenticated if it
  // does not know the secret; or the status with which it refuses. Errors complete a sentence that begins with the
  // peer's name.
  absl::StatusOr<bool> Advance();
  // The peer has proved that it has the job's secret, or there is none. A refusal by any other peer decides nothing.
  bool may_refuse() const { return is_genuine_ || token_.empty(); }

 private:
  absl::StatusOr<bool> OnFrame(const TcpFrame& frame);
  absl::Status OnChallenge(const std::string& payload);

  TcpFrameConnection connection_;
  const std::string token_;
  const TlsContext* const tls_;
  bool is_in_tls_handshake_ = false;
  std::string hello_;  // as it was sent
  bool is_challenged_ = false;
  bool is_genuine_ = false;
};

// The hellos that a rank remembers: 5 for each rank of the largest job, with those that ranks repeat when a connection
// was lost.
inline constexpr size_t kTcpHellosHeardMax = 5 * size_t{kWorldSizeMax};

// The hellos that a rank has heard. Each rank makes a fresh one for every connection, so one that comes twice was
// recorded. Remembers the last kTcpHellosHeardMax: only ranks of the job make more.
class TcpHellosHeard {
 public:
  // False if a hello with this code was heard before.
  [[nodiscard]] bool Add(const std::string& code);

 private:
  std::set<std::string> codes_;
  std::deque<std::string> in_order_;  // oldest first
};

// The side that is dialled.
class TcpDoorkeeper {
 public:
  // `heard` and `tls` outlive it. The connection is encrypted if both sides have `tls`. If one has, the caller refuses.
  TcpDoorkeeper(Socket socket, std::string token, TcpHellosHeard* heard, const TlsContext* tls = nullptr)
      : connection_(std::move(socket)), token_(std::move(token)), heard_(heard), tls_(tls) {}

  TcpFrameConnection& connection() { return connection_; }

  // Goes on as far as what has arrived allows; true: hello() is proved. The caller then welcomes or refuses. Errors as
  // of TcpDialer; where the peer can be told, it has been.
  absl::StatusOr<bool> Advance();

  // A hello of the job, which is not a recorded one, has arrived.
  bool has_hello() const { return !hello_bytes_.empty(); }

  // REQUIRES: Advance has returned true.
  const TcpHello& hello() const { return hello_; }

 private:
  absl::Status OnHello(const std::string& payload);
  void Challenge();
  absl::Status OnProof(const std::string& payload);

  TcpFrameConnection connection_;
  const std::string token_;
  TcpHellosHeard* const heard_;
  const TlsContext* const tls_;
  bool is_in_tls_handshake_ = false;
  TcpHello hello_;
  std::string hello_bytes_;  // empty until the hello has arrived
  std::string nonce_;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_HANDSHAKE_H_
