#include "worker/check/peer_listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/process_facts.h"
#include "common/network/address.h"
#include "common/network/round_trip.h"

namespace starring {
namespace {

// Every rank may dial every other one at one address, and few at more.
constexpr size_t kConnectionsMax = 2 * kWorldSizeMax + 64;

struct Answer {
  uint64_t nonce = 0;
  int64_t clock_us = 0;  // the listener's wall clock
};
static_assert(sizeof(Answer) == 16);

absl::Status Closed() {
  return absl::UnavailableError("the connection is closed: another program listens there, or the worker has ended");
}

absl::StatusOr<int64_t> Ping(const Socket& socket, uint64_t nonce, absl::Time end) {
  // MSG_NOSIGNAL: a peer that has gone is an error, and not SIGPIPE. A ping is answered before the next one, so it
  // always fits the socket's buffer.
  if (send(socket.fd(), &nonce, sizeof(nonce), MSG_NOSIGNAL) != sizeof(nonce)) return Closed();
  Answer answer;
  for (size_t received = 0; received < sizeof(answer);) {
    // At least 1 ms: rounding down to 0 would turn the last part of a millisecond into a busy loop.
    const int64_t left_ms = absl::ToInt64Milliseconds(end - SteadyNow());
    if (end <= SteadyNow()) return absl::DeadlineExceededError("connected, but no answer");
    pollfd polled = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (poll(&polled, 1, static_cast<int>(std::max<int64_t>(1, left_ms))) <= 0) continue;
    const ssize_t count =
        recv(socket.fd(), reinterpret_cast<char*>(&answer) + received, sizeof(answer) - received, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Closed();
    if (count > 0) received += static_cast<size_t>(count);
  }
  // Another program may answer at an address that two hosts have.
  if (answer.nonce != nonce) return Closed();
  return answer.clock_us;
}

}  // namespace

absl::Status PingListener(const Socket& socket, uint64_t nonce, absl::Time end, v1::LinkReport& link) {
  return MeasureRoundTrip(
      kPings, [&] { return Ping(socket, nonce, end); }, link);
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Start(const PortRange& ports) {
  // At every interface, because the check finds out which of them the others can reach.
  ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Listen("[::]:0", ports));
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(listener.address()));
  return std::unique_ptr<PeerListener>(new PeerListener(std::move(listener), place.port));
}

// The thread is the last member, so it starts when all that it uses has been initialised.
PeerListener::PeerListener(TcpListener listener, int port)
    : listener_(std::move(listener)), port_(port), nonce_(DrawNonce()), thread_([this] { Run(); }) {}

PeerListener::~PeerListener() {
  shutdown(listener_.fd(), SHUT_RDWR);  // wakes poll, and Run sees that the socket hangs up
  thread_.join();
}

// One thread serves all connections, and no step of it waits: reads take what is there, answers fit the send buffer,
// and only poll blocks. So a peer that stops in the middle of a message cannot delay the others.
void PeerListener::Run() {
  while (true) {
    // The list is built anew for each round, because connections come and go.
    std::vector<pollfd> polled = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.socket.fd(), .events = POLLIN, .revents = 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    // A listening socket hangs up only after the destructor has shut it down.
    if ((polled[0].revents & POLLHUP) != 0) return;
    // The loop runs from the end, because a connection that is closed is replaced by the last one.
    for (size_t i = connections_.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0 || OnReadable(connections_[i])) continue;
      std::swap(connections_[i], connections_.back());
      connections_.pop_back();
    }
    // Accept comes after the loop, which pairs polled[i + 1] with connections_[i]: a new connection has no entry in
    // `polled`.
    if (polled[0].revents != 0) Accept();
  }
}

void PeerListener::Accept() {
  // One connection is accepted in a round; poll reports the socket again if others wait. A connection beyond the limit
  // is closed by its destructor, so a stranger cannot use up this process's descriptors.
  Socket accepted = listener_.Accept();
  if (accepted.fd() < 0 || connections_.size() >= kConnectionsMax) return;
  const int one = 1;
  setsockopt(accepted.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  connections_.push_back({.socket = std::move(accepted)});
}

bool PeerListener::OnReadable(Connection& connection) const {
  const ssize_t count = recv(connection.socket.fd(), reinterpret_cast<char*>(&connection.ping) + connection.bytes,
                             sizeof(connection.ping) - connection.bytes, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.bytes += static_cast<size_t>(count);
  if (count == 0 || connection.bytes < sizeof(connection.ping)) return count > 0;
  connection.bytes = 0;
  // Closing is the only refusal: a program that does not know the nonce gets no answer from which it could learn it.
  if (connection.ping != nonce_) return false;
  const Answer answer = {.nonce = nonce_, .clock_us = WallClockMicroseconds()};
  // A peer that does not read its answers is closed: the listener's only thread must not wait for it.
  return send(connection.socket.fd(), &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(answer);
}

}  // namespace starring
