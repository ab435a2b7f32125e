#include "worker/check/peer_link.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/process_facts.h"

namespace starring {
namespace {

using peer_protocol::Answer;
using peer_protocol::Request;
using peer_protocol::Word;

// A single ping may meet a listener that is busy with another rank: one thread answers all connections.
constexpr int kPings = 10;

absl::Status Closed() {
  return absl::UnavailableError("the connection is closed: another program listens there, or the worker has ended");
}

}  // namespace

absl::Status PeerLink::AwaitReady(short events, absl::Time end) const {
  pollfd polled = {.fd = socket_.fd(), .events = events, .revents = 0};
  while (true) {
    const absl::Duration left = end - SteadyNow();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("connected, but no answer");
    // The wait is at least 1 ms: rounding down to 0 would turn the last part of a millisecond into a busy loop.
    const int64_t wait_ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(left));
    const int count = poll(&polled, 1, static_cast<int>(wait_ms));
    // A connection that has failed is ready too. The next send or recv then returns its error.
    if (count > 0) return absl::OkStatus();
    if (count < 0 && errno != EINTR) return absl::InternalError(ErrnoText(errno));
  }
}

absl::Status PeerLink::Send(const void* data, size_t size, absl::Time end) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    // MSG_NOSIGNAL: a peer that has gone is an error, and not SIGPIPE, which would end this process.
    const ssize_t count = send(socket_.fd(), next, size, MSG_NOSIGNAL);
    // An interrupted call (EINTR) matches none of the branches and is repeated, here and in Receive.
    if (count < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(AwaitReady(POLLOUT, end));
    } else if (count < 0 && errno != EINTR) {
      return Closed();
    } else if (count > 0) {
      next += count;
      size -= static_cast<size_t>(count);
    }
  }
  return absl::OkStatus();
}

absl::Status PeerLink::Receive(void* data, size_t size, absl::Time end) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    // 0 is the end of the stream: a listener closes a connection whose nonce it does not know, so a program of another
    // job that listens at this address ends here.
    const ssize_t count = recv(socket_.fd(), next, size, 0);
    if (count < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(AwaitReady(POLLIN, end));
    } else if (count == 0 || (count < 0 && errno != EINTR)) {
      return Closed();
    } else if (count > 0) {
      next += count;
      size -= static_cast<size_t>(count);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Answer> PeerLink::Ask(const Request& request, const std::string& text, absl::Time end) {
  Request head = request;
  head.nonce = nonce_;
  head.length = static_cast<uint32_t>(text.size());
  // Head and text leave in one send: Nagle's algorithm is off, so two sends would be two packets.
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes += text;
  RETURN_IF_ERROR(Send(bytes.data(), bytes.size(), end));
  Answer answer;
  RETURN_IF_ERROR(Receive(&answer, sizeof(answer), end));
  // Another program may answer at an address that two hosts have.
  if (answer.magic != peer_protocol::kMagic) return Closed();
  return answer;
}

absl::StatusOr<RoundTrip> PeerLink::MeasureRoundTrip(absl::Time end) {
  RoundTrip best{.microseconds = std::numeric_limits<double>::max()};
  for (int i = 0; i < kPings; ++i) {
    const int64_t clock = WallClockMicroseconds();
    const absl::Time start = SteadyNow();
    ASSIGN_OR_RETURN(const Answer answer, Ask({.word = Word::kPing}, "", end));
    const double microseconds = absl::ToDoubleMicroseconds(SteadyNow() - start);
    if (microseconds >= best.microseconds) continue;
    best.microseconds = microseconds;
    // The answer was sent half a round trip ago; the quickest ping has the smallest error.
    best.clock_ahead_s = (static_cast<double>(answer.clock_us - clock) - microseconds / 2) / 1e6;
  }
  return best;
}

absl::StatusOr<double> PeerLink::MeasureBandwidth(double seconds, absl::Time end) {
  const std::string payload(kCheckPayloadBytesMax, '\0');
  Request head{.word = Word::kData};
  head.nonce = nonce_;
  head.length = static_cast<uint32_t>(payload.size());
  // All answers are awaited at the end, so that the link is never idle between two messages.
  const absl::Time start = SteadyNow();
  int64_t bytes = 0;
  int answers = 0;
  // One message is sent in any case, since a rate of 0 means that nothing was measured. The answers that are not read
  // yet fit the socket's buffer: at most 16 of 24 bytes.
  while (bytes == 0 || (bytes < kCheckBandwidthBytesMax && SteadyNow() - start < absl::Seconds(seconds))) {
    RETURN_IF_ERROR(Send(&head, sizeof(head), end));
    RETURN_IF_ERROR(Send(payload.data(), payload.size(), end));
    bytes += static_cast<int64_t>(payload.size());
    ++answers;
  }
  // Bytes in this host's send buffer have not crossed the link. The last answer says that all of them have.
  for (; answers > 0; --answers) {
    Answer answer;
    RETURN_IF_ERROR(Receive(&answer, sizeof(answer), end));
  }
  return static_cast<double>(bytes) / absl::ToDoubleSeconds(SteadyNow() - start);
}

absl::Status PeerLink::Put(int rank, int stage, const std::string& text, absl::Time end) {
  return Ask({.word = Word::kPut, .rank = rank, .stage = stage}, text, end).status();
}

absl::StatusOr<std::optional<std::string>> PeerLink::Get(int rank, int stage, absl::Time end) {
  ASSIGN_OR_RETURN(const Answer answer, Ask({.word = Word::kGet, .rank = rank, .stage = stage}, "", end));
  if (answer.found == 0) return std::optional<std::string>();
  // The length comes from the network: it must not decide how much is allocated.
  if (answer.length > kCheckNoteBytesMax) return Closed();
  std::string text(answer.length, '\0');
  RETURN_IF_ERROR(Receive(text.data(), text.size(), end));
  return std::optional<std::string>(std::move(text));
}

}  // namespace starring
