// The encryption of connections between ranks: an interface without OpenSSL, which libstarring must not need.
// openssl_tls.h implements it.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TLS_SESSION_H_
#define STARRING_COMMON_TRANSPORT_TCP_TLS_SESSION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace starring {

// The most bytes that one record of TLS carries (RFC 8446, 5.1).
inline constexpr int64_t kTlsRecordBytesMax = int64_t{16} << 10;

// One connection. Sends and receives by the descriptor that it was made with, which stays open as long. No call blocks.
//
// Thread safety: one thread at a time.
class TlsSession {
 public:
  virtual ~TlsSession() = default;

  // Goes on as far as the data that has arrived allows. True: both ends have proved that they have the job's
  // certificate. Unavailable if the peer is gone, Unauthenticated if it has another certificate. Errors complete a
  // sentence that begins with the peer's name.
  virtual absl::StatusOr<bool> Handshake() = 0;

  // As sendmsg and recvmsg do: the number of bytes, or -1 and errno. Both need a finished handshake.
  //
  // Send takes all bytes unless the kernel takes no more. Bytes that it has taken may wait in the session, encrypted,
  // for the next Send or Flush: they are sent when has_unsent() is false. -1 with an errno other than EAGAIN: the
  // waiting bytes are lost.
  virtual ssize_t Send(std::span<const iovec> parts) = 0;
  // Receive fills `parts` as far as the data that has arrived allows. EBADMSG: that data was not sent by the peer, or
  // was changed on the way.
  virtual ssize_t Receive(std::span<const iovec> parts) = 0;

  // Sends what waits, as far as the kernel takes it. False, with errno: the connection is lost, and nothing waits.
  virtual bool Flush() = 0;
  virtual bool has_unsent() const = 0;
  // How many bytes to ask of Receive for what it returns even if nothing more arrives: the rest of a record, at most
  // kTlsRecordBytesMax, or 1 for an end or an error. If asked for no more, Receive decrypts no further record.
  virtual int64_t unread_bytes() const = 0;
};

// The state that all sessions of a process share: its key and certificate.
//
// Thread safety: any thread may call it.
class TlsContext {
 public:
  virtual ~TlsContext() = default;
  enum class Side { kDials, kIsDialled };
  // For the connection `fd`, which does not block. The context may end before its sessions.
  virtual std::unique_ptr<TlsSession> NewSession(int fd, Side side) const = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TLS_SESSION_H_
