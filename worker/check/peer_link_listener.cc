#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/host/process_facts.h"
#include "worker/check/peer_link.h"

namespace starring {
namespace {

using peer_protocol::Request;
using peer_protocol::Word;

constexpr int kBacklog = 128;
// Every rank may dial every other one, and have a second connection for rank 0's notes.
constexpr size_t kConnectionsMax = 2 * kWorldSizeMax + 64;
constexpr size_t kReadBytes = 256 << 10;

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", ErrnoText(errno)));
}

// Room for the longest answer, a note, twice. If an answer does not fit all the same, the peer does not read, and its
// connection is closed: the listener's only thread must not wait for one peer.
constexpr int kSendBufferBytes = 2 * static_cast<int>(kCheckNoteBytesMax);

[[nodiscard]] bool SendAll(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Start() {
  // The listener is at every interface, because the check finds out which of them the others can reach. The nonce keeps
  // strangers out.
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  auto* address = reinterpret_cast<sockaddr*>(&six);
  socklen_t length = sizeof(six);
  Socket listening(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int no = 0;  // IPv4 too
  if (listening.fd() < 0 || setsockopt(listening.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) != 0 ||
      bind(listening.fd(), address, length) != 0) {  // a machine without IPv6
    listening = Socket(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listening.fd() < 0) return SystemError("make a socket");
    address = reinterpret_cast<sockaddr*>(&four);
    length = sizeof(four);
    if (bind(listening.fd(), address, length) != 0) return SystemError("take a port");
  }
  if (listen(listening.fd(), kBacklog) != 0) return SystemError("listen");
  // The system chose the port, since bind was given port 0. This call returns that port.
  if (getsockname(listening.fd(), address, &length) != 0) return SystemError("listen");
  const in_port_t port = address->sa_family == AF_INET6 ? six.sin6_port : four.sin_port;
  Socket waker(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (waker.fd() < 0) return SystemError("make an eventfd");
  return std::unique_ptr<PeerListener>(
      new PeerListener(std::move(listening), std::move(waker), ntohs(port), DrawNonce()));
}

// The thread is the last member, so it starts when all that it uses has been initialised.
PeerListener::PeerListener(Socket socket, Socket waker, int port, uint64_t nonce)
    : socket_(std::move(socket)), waker_(std::move(waker)), port_(port), nonce_(nonce), thread_([this] { Run(); }) {}

PeerListener::~PeerListener() {
  const uint64_t one = 1;
  // If the eventfd fails, a listening socket that is shut down wakes poll too, and Run sees that it hangs up.
  if (write(waker_.fd(), &one, sizeof(one)) < 0) shutdown(socket_.fd(), SHUT_RDWR);
  thread_.join();
}

void PeerListener::Put(int rank, int stage, std::string text) {
  const MutexLock lock(mutex_);
  notes_[{rank, stage}] = std::move(text);
}

std::optional<std::string> PeerListener::Get(int rank, int stage) const {
  const MutexLock lock(mutex_);
  const auto found = notes_.find({rank, stage});
  if (found == notes_.end()) return std::nullopt;
  return found->second;
}

// One thread serves all connections, and no step of it waits: reads take what is there, answers fit the send buffer,
// and only poll blocks. So a peer that stops in the middle of a message cannot delay the others.
void PeerListener::Run() {
  while (true) {
    // The list is built anew for each round, because connections come and go.
    std::vector<pollfd> polled = {{.fd = waker_.fd(), .events = POLLIN, .revents = 0},
                                  {.fd = socket_.fd(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.socket.fd(), .events = POLLIN, .revents = 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    // A listening socket hangs up only after the destructor has shut it down.
    if (polled[0].revents != 0 || (polled[1].revents & POLLHUP) != 0) return;
    const size_t count = connections_.size();
    // The loop runs from the end, because a connection that is closed is replaced by the last one.
    for (size_t i = count; i-- > 0;) {
      if (polled[i + 2].revents == 0 || OnReadable(connections_[i])) continue;
      std::swap(connections_[i], connections_.back());
      connections_.pop_back();
    }
    // Accept comes after the loop, which pairs polled[i + 2] with connections_[i]: a new connection has no entry in
    // `polled`.
    if (polled[1].revents != 0) Accept();
  }
}

void PeerListener::Accept() {
  // One connection is accepted in a round; poll reports the socket again if others wait. A connection beyond the limit
  // is closed by its destructor, so a stranger cannot use up this process's descriptors.
  Socket accepted(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.fd() < 0 || connections_.size() >= kConnectionsMax) return;
  const int one = 1;
  setsockopt(accepted.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(accepted.fd(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  connections_.push_back({.socket = std::move(accepted), .received = "", .bytes_to_skip = 0});
}

bool PeerListener::OnReadable(Connection& connection) {
  // One buffer for all connections: only this thread reads.
  static thread_local std::string buffer(kReadBytes, '\0');
  // Each connection is read once in a round, so that a bandwidth test does not delay the pings of other ranks to its
  // end.
  const ssize_t count = recv(connection.socket.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count == 0) return false;
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  // A read may end anywhere and may hold several requests. A connection is in one of three states: it skips the bytes
  // of a kData request, or collects a head, or collects the note after a head. Each turn of the loop takes bytes for
  // one state and moves on when that state has all of them.
  size_t begin = 0;
  const size_t end = static_cast<size_t>(count);
  while (begin < end) {
    if (connection.bytes_to_skip > 0) {
      const size_t skipped = std::min(connection.bytes_to_skip, end - begin);
      connection.bytes_to_skip -= skipped;
      begin += skipped;
      if (connection.bytes_to_skip == 0 && !Answer(connection, std::nullopt, false)) return false;
      continue;
    }
    // This connection needs the rest of a head, or of the note after it. AnswerComplete has accepted a head that is
    // still here, so its length is at most kCheckNoteBytesMax.
    Request head;
    size_t wanted = sizeof(head);
    if (connection.received.size() >= sizeof(head)) {
      memcpy(&head, connection.received.data(), sizeof(head));
      wanted += head.length;
    }
    const size_t taken = std::min(wanted - connection.received.size(), end - begin);
    connection.received.append(buffer, begin, taken);
    begin += taken;
    if (connection.received.size() >= sizeof(head) && !AnswerComplete(connection)) return false;
  }
  return true;
}

// Called when the head is complete. Refuses it, waits for the bytes that follow it, or answers. Closing is the only
// refusal: a program that does not know the nonce gets no answer from which it could learn something.
bool PeerListener::AnswerComplete(Connection& connection) {
  Request head;
  memcpy(&head, connection.received.data(), sizeof(head));
  if (head.magic != peer_protocol::kMagic || head.nonce != nonce_) return false;
  if (head.word == Word::kData) {
    // The answer is sent after the last byte. A request without bytes would never be answered.
    if (head.length == 0 || head.length > kCheckPayloadBytesMax) return false;
    connection.bytes_to_skip = head.length;
    connection.received.clear();
    return true;
  }
  if (head.word == Word::kPut) {
    // These bounds limit the memory of all notes: a second note of a rank for a stage replaces the first.
    if (head.length > kCheckNoteBytesMax || head.rank < 0 || head.rank >= kWorldSizeMax || head.stage < 1 ||
        head.stage > kCheckStagesMax) {
      return false;
    }
    if (connection.received.size() < sizeof(head) + head.length) return true;
    Put(head.rank, head.stage, connection.received.substr(sizeof(head)));
  } else if (head.length != 0) {
    return false;
  }
  connection.received.clear();
  if (head.word == Word::kGet) return Answer(connection, Get(head.rank, head.stage), true);
  // Any other word comes from another version of this program. Closing the connection tells its peer at once.
  return (head.word == Word::kPing || head.word == Word::kPut) && Answer(connection, std::nullopt, false);
}

bool PeerListener::Answer(const Connection& connection, const std::optional<std::string>& note, bool is_get) {
  peer_protocol::Answer answer;
  answer.clock_us = WallClockMicroseconds();
  // `length` does not tell whether there is a note: a note may be empty.
  answer.found = is_get && note.has_value() ? 1 : 0;
  answer.length = note.has_value() ? static_cast<uint32_t>(note->size()) : 0;
  std::string bytes(reinterpret_cast<const char*>(&answer), sizeof(answer));
  if (note.has_value()) bytes += *note;
  return SendAll(connection.socket.fd(), bytes);
}

}  // namespace starring
