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

// Lets poll wait until whole messages are there, or the connection is over.
void WaitForBytes(const Socket& socket, int bytes) {
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

absl::StatusOr<int64_t> Ping(const Socket& socket, uint64_t nonce, absl::Time end) {
  // MSG_NOSIGNAL: a peer that has gone is an error, and not SIGPIPE. A ping is answered before the next one, so it
  // always fits the socket's buffer.
  if (send(socket.fd(), &nonce, sizeof(nonce), MSG_NOSIGNAL) != sizeof(nonce)) return Closed();
  pollfd polled = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
  // At least 1 ms: rounding down to 0 would turn the last part of a millisecond into a busy loop.
  while (poll(&polled, 1, std::max(1, static_cast<int>(absl::ToInt64Milliseconds(end - SteadyNow())))) <= 0) {
    if (end <= SteadyNow()) return absl::DeadlineExceededError("connected, but no answer");
  }
  Answer answer;
  // Another program may answer at an address that two hosts have.
  if (recv(socket.fd(), &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer) || answer.nonce != nonce) {
    return Closed();
  }
  return answer.clock_us;
}

}  // namespace

absl::Status PingListener(const Socket& socket, uint64_t nonce, absl::Time end, v1::LinkReport& link) {
  WaitForBytes(socket, sizeof(Answer));
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
    for (const Socket& one : connections_) polled.push_back({.fd = one.fd(), .events = POLLIN, .revents = 0});
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
  WaitForBytes(accepted, sizeof(uint64_t));
  connections_.push_back(std::move(accepted));
}

bool PeerListener::OnReadable(const Socket& socket) const {
  uint64_t ping = 0;
  const ssize_t count = recv(socket.fd(), &ping, sizeof(ping), MSG_DONTWAIT);
  // Closing is the only refusal: a program that does not know the nonce gets no answer from which it could learn it.
  if (count != sizeof(ping) || ping != nonce_) return false;
  const Answer answer = {.nonce = nonce_, .clock_us = WallClockMicroseconds()};
  // A peer that does not read its answers is closed: the listener's only thread must not wait for it.
  return send(socket.fd(), &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(answer);
}

}  // namespace starring
