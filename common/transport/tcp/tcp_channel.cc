#include "common/transport/tcp/tcp_channel.h"

#include <errno.h>
#include <sys/socket.h>

namespace starring {
namespace {

// sendmsg and recvmsg want what they only read to be writable.
msghdr MessageOf(std::span<const iovec> parts) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

ssize_t TcpChannel::Send(std::span<const iovec> parts) {
  if (tls_ != nullptr) return tls_->Send(parts);
  const msghdr message = MessageOf(parts);
  ssize_t sent = -1;
  do {
    // MSG_NOSIGNAL: a peer that has gone is an error, and not SIGPIPE, which would end this process.
    sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t TcpChannel::Receive(std::span<const iovec> parts) {
  if (tls_ != nullptr) return tls_->Receive(parts);
  msghdr message = MessageOf(parts);
  ssize_t got = -1;
  do {
    got = recvmsg(fd(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace starring
