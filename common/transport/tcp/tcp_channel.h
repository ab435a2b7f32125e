// The bytes of one TCP connection: as they are, or encrypted (tls_session.h). Below frames (tcp_frames.h) and messages
// (tcp_stream.h), which follow each other on one channel.
//
// Cost: without TLS one comparison for each system call.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_CHANNEL_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_CHANNEL_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/network/dial.h"
#include "common/transport/tcp/tls_session.h"

namespace starring {

class TcpChannel {
 public:
  TcpChannel() = default;
  // `socket` is connected and does not block. A socket alone is a channel: conversions are meant.
  TcpChannel(Socket socket) : socket_(std::move(socket)) {}  // NOLINT(google-explicit-constructor)

  int fd() const { return socket_.fd(); }
  const Socket& socket() const { return socket_; }
  void CloseInChildren() { socket_.CloseInChildren(); }

  // From here on everything is encrypted. REQUIRES: `session` has been made for fd(); everything sent has left.
  void Encrypt(std::unique_ptr<TlsSession> session) { tls_ = std::move(session); }
  bool is_encrypted() const { return tls_ != nullptr; }
  // nullptr in the clear.
  TlsSession* tls() { return tls_.get(); }

  // As sendmsg and recvmsg with MSG_DONTWAIT, without SIGPIPE: the number of bytes, or -1 and errno; never EINTR.
  // TlsSession says what differs with encryption.
  ssize_t Send(std::span<const iovec> parts);
  ssize_t Receive(std::span<const iovec> parts);

  // Sends what a session holds, as far as the kernel takes it. False, with errno: the connection is lost.
  bool Flush() { return tls_ == nullptr || tls_->Flush(); }
  // Bytes that Send has taken, and the kernel has not.
  bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }
  // As TlsSession's; 0 in the clear.
  int64_t unread_bytes() const { return tls_ == nullptr ? 0 : tls_->unread_bytes(); }

 private:
  Socket socket_;
  std::unique_ptr<TlsSession> tls_;  // for socket_
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_CHANNEL_H_
