// Short messages between two processes that do not trust each other yet: what ranks say while they find each other
// (tcp_rendezvous.h). A frame is a head and at most as many bytes as its reader allows.
//
// Wire. The head begins with a magic number and a version, and will in every version, so that a build of another
// version can be told so.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_FRAMES_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_channel.h"
#include "common/transport/tcp/tls_session.h"

namespace starring {

inline constexpr uint32_t kTcpFrameVersion = 3;

enum class TcpFrameKind : uint32_t {
  kHello = 1,      // the side that dialled: its rank and its job
  kChallenge = 2,  // the side that was dialled: its proof, and a challenge
  kProof = 3,      // the side that dialled: its proof
  kWelcome = 4,    // the connection is accepted
  kRefusal = 5,    // either side: a status; nothing follows
  kTable = 6,      // rank 0: where every rank listens
  kReady = 7,      // this rank is connected with all others
  kGo = 8,         // rank 0: all ranks are
  kBeginTls = 9,   // the side that was dialled: what follows is encrypted
};

struct TcpFrame {
  TcpFrameKind kind = TcpFrameKind::kHello;
  std::string payload;
};

class TcpFrameConnection {
 public:
  // `socket` is connected and does not block.
  explicit TcpFrameConnection(Socket socket);

  int fd() const { return channel_.fd(); }
  const Socket& socket() const { return channel_.socket(); }
  const std::string& peer() const { return peer_; }  // "10.0.0.3:4711"; "a peer" if it has gone already

  // Queues a frame and sends what the kernel takes. That a peer is gone is found by Receive, with the reason that the
  // peer may have given before.
  void Send(TcpFrameKind kind, std::string_view payload);
  // Sends what the kernel takes.
  void Flush();
  bool has_unsent() const { return !unsent_.empty() || channel_.has_unsent(); }

  // From here on the connection is encrypted: the next frames follow the handshake. REQUIRES: !has_unsent(); all that
  // has arrived has been received.
  void BeginTls(const TlsContext& context, TlsContext::Side side);
  // After BeginTls, until it is true; TlsSession says when it is, and its errors.
  absl::StatusOr<bool> Handshake() { return channel_.tls()->Handshake(); }
  bool is_encrypted() const { return channel_.is_encrypted(); }

  // Sends `why` as a kRefusal, if the kernel takes it, and hangs up: the connection is to be closed. The text is cut at
  // kStatusTextBytesMax bytes.
  void Refuse(const absl::Status& why);

  // The next frame, if all of it has arrived; reads no byte beyond it. Never blocks. Unavailable if the peer has closed
  // the connection, InvalidArgument if it has another version or is no rank at all, or if its payload is longer than
  // `payload_bytes_max`. A kRefusal, which may have kStatusTextBytesMax bytes, is returned as the status that it
  // carries, with "says: " before its text; control characters are escaped. All errors complete a sentence that begins
  // with the peer's name.
  absl::StatusOr<std::optional<TcpFrame>> Receive(size_t payload_bytes_max);
  // Whether Receive has met another version: such a rank understands a refusal.
  bool has_other_version() const { return has_other_version_; }

  // The connection itself, for what follows the frames. REQUIRES: !has_unsent().
  TcpChannel TakeChannel() { return std::move(channel_); }

 private:
  absl::StatusOr<bool> Fill(size_t size);

  TcpChannel channel_;
  std::string peer_;
  std::string unsent_;
  std::string received_;  // of the current frame
  bool has_other_version_ = false;
};

// Whether `text`, which another process has sent, may be printed as it is: it has no control characters.
[[nodiscard]] bool IsPrintable(std::string_view text);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_FRAMES_H_
