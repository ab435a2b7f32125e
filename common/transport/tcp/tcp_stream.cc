#include "common/transport/tcp/tcp_stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

using tcp_wire::kGoodbyeTag;
using tcp_wire::kMagic;
using tcp_wire::MessageHeader;

static_assert(std::endian::native == std::endian::little, "headers are sent as they are in memory");

// TCP_RTO_MAX_MS of linux/tcp.h, which older headers do not have. An older kernel refuses it.
constexpr int kTcpRtoMaxMs = 44;
// One call sends several short messages that wait, each in two parts.
constexpr size_t kPartsMax = 16;
// Headers and short messages are received here, and copied. Large enough for several notices or for a whole short
// message, small enough that the copied part of a chunk does not count.
constexpr size_t kStagingBytes = 4096;

// An error is ignored: without an option the stream is slower or notices a lost host later, but works.
void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

// Messages about the other end complete a sentence that begins with its name.
absl::Status LostError(int error_number) {
  return absl::UnavailableError(absl::StrCat("cannot be reached any more, ", ErrnoText(error_number),
                                             ": has its process ended, or is its host or the network down?"));
}

}  // namespace

TcpStream::TcpStream(TcpChannel channel, int silence_ms) : channel_(std::move(channel)) {
  channel_.CloseInChildren();  // a child would keep the connection open
  // A message is written as a whole, so waiting for more of it would only delay it.
  SetOption(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanishes closes nothing. Probes find it while nothing is sent, the timeout while data is
  // unacknowledged.
  SetOption(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd(), IPPROTO_TCP, TCP_KEEPIDLE, kTcpKeepaliveSeconds);
  SetOption(fd(), IPPROTO_TCP, TCP_KEEPINTVL, kTcpKeepaliveSeconds);
  SetOption(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, silence_ms);
  SetOption(fd(), IPPROTO_TCP, kTcpRtoMaxMs, kTcpResendMsMax);
}

void TcpStream::Push(int tag, std::span<const std::byte> data, Transport::Token token) {
  outgoing_.push_back({.header = {.tag = tag, .length = data.size()}, .data = data, .token = token});
}

absl::Status TcpStream::Write(int64_t budget, std::vector<Transport::Token>& sent) {
  if (outgoing_.empty() && !channel_.Flush()) return WriteError(errno);
  while (!outgoing_.empty() && budget > 0) {
    std::array<iovec, kPartsMax> parts;
    size_t part_count = 0;
    int64_t bytes = 0;
    const auto add = [&](const void* data, size_t size) {
      parts[part_count++] = {.iov_base = const_cast<void*>(data), .iov_len = size};
      bytes += static_cast<int64_t>(size);
    };
    for (const Outgoing& message : outgoing_) {
      // The rest of a message is two parts at most: of its header, and of its bytes.
      if (part_count + 2 > parts.size() || bytes >= budget) break;
      const size_t header_sent = std::min(message.sent, sizeof(message.header));
      if (header_sent < sizeof(message.header)) {
        add(reinterpret_cast<const std::byte*>(&message.header) + header_sent, sizeof(message.header) - header_sent);
      }
      const std::span<const std::byte> rest = message.data.subspan(message.sent - header_sent);
      const auto allowed = static_cast<size_t>(std::max<int64_t>(0, budget - bytes));
      if (!rest.empty() && allowed > 0) add(rest.data(), std::min(rest.size(), allowed));
    }
    const ssize_t written = channel_.Send({parts.data(), part_count});
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (written < 0) return WriteError(errno);
    RetireSealed(sent);  // a session takes nothing before the kernel has what was taken before
    Retire(static_cast<size_t>(written), channel_.is_encrypted() ? sealed_ : sent);
    if (written < bytes) break;  // the kernel takes no more
    budget -= written;
  }
  if (!channel_.has_unsent()) RetireSealed(sent);
  return absl::OkStatus();
}

void TcpStream::RetireSealed(std::vector<Transport::Token>& sent) {
  sent.insert(sent.end(), sealed_.begin(), sealed_.end());
  sealed_.clear();
}

void TcpStream::Retire(size_t written, std::vector<Transport::Token>& taken) {
  while (written > 0) {
    Outgoing& message = outgoing_.front();
    const size_t step = std::min(written, message.size() - message.sent);
    message.sent += step;
    written -= step;
    if (message.sent < message.size()) return;
    taken.push_back(message.token);
    outgoing_.pop_front();
  }
}

std::vector<Transport::Token> TcpStream::DropUnsent() {
  std::vector<Transport::Token> dropped = std::exchange(sealed_, {});
  for (const Outgoing& message : outgoing_) dropped.push_back(message.token);
  outgoing_.clear();
  return dropped;
}

absl::Status TcpStream::Read(int64_t budget, Receiver& receiver) {
  std::array<std::byte, kStagingBytes> staging;
  while (true) {
    // The session may hold decrypted bytes. Read takes them even beyond the budget: no event would tell of them later.
    const int64_t allowed = budget > 0 ? budget : channel_.unread_bytes();
    if (allowed == 0) return absl::OkStatus();
    std::array<iovec, 2> parts;
    size_t part_count = 0;
    const int64_t direct = std::min(missing_, allowed);
    int64_t asked = direct;
    if (direct > 0) {
      parts[part_count++] = {.iov_base = destination_ + (static_cast<int64_t>(header_.length) - missing_),
                             .iov_len = static_cast<size_t>(direct)};
    }
    // The next header, and what comes with it, in the same call.
    if (direct == missing_) {
      const size_t staged =
          budget > 0 ? staging.size() : std::min(staging.size(), static_cast<size_t>(allowed - direct));
      parts[part_count++] = {.iov_base = staging.data(), .iov_len = staged};
      asked += static_cast<int64_t>(staged);
    }
    const ssize_t got = channel_.Receive({parts.data(), part_count});
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got == 0) return Closed();
    if (got < 0 && errno == EBADMSG) {
      return absl::InternalError(
          "has sent what does not decrypt: the stream is damaged, or a host on the way has changed it");
    }
    if (got < 0) return LostError(errno);
    budget -= got;
    const int64_t placed = std::min<int64_t>(got, direct);
    missing_ -= placed;
    if (in_message_ && missing_ == 0) EndMessage(receiver);
    RETURN_IF_ERROR(Parse({staging.data(), static_cast<size_t>(got - placed)}, receiver));
    // Fewer bytes than asked for: no more have arrived, and another call would only say so.
    if (got < asked && channel_.unread_bytes() == 0) return absl::OkStatus();
  }
}

// Every byte becomes part of a header or of a message, so that the staging memory is free again.
absl::Status TcpStream::Parse(std::span<const std::byte> bytes, Receiver& receiver) {
  while (!bytes.empty()) {
    if (in_message_) {
      const size_t step = std::min(bytes.size(), static_cast<size_t>(missing_));
      std::memcpy(destination_ + (static_cast<int64_t>(header_.length) - missing_), bytes.data(), step);
      missing_ -= static_cast<int64_t>(step);
      bytes = bytes.subspan(step);
      if (missing_ == 0) EndMessage(receiver);
      continue;
    }
    const size_t step = std::min(bytes.size(), sizeof(header_) - header_bytes_);
    std::memcpy(reinterpret_cast<std::byte*>(&header_) + header_bytes_, bytes.data(), step);
    header_bytes_ += step;
    bytes = bytes.subspan(step);
    if (header_bytes_ == sizeof(header_)) RETURN_IF_ERROR(BeginMessage(receiver));
  }
  return absl::OkStatus();
}

absl::Status TcpStream::BeginMessage(Receiver& receiver) {
  header_bytes_ = 0;
  const bool is_goodbye = header_.tag == kGoodbyeTag && header_.length == 0;
  if (header_.magic != kMagic || (header_.tag < 0 && !is_goodbye) ||
      // Lengths are int64_t from here on, and a greater one would become negative.
      header_.length > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InternalError(
        absl::StrFormat("has sent a header %08x (tag %d, length %d) instead of %08x: the stream "
                        "is damaged, or its other end is another program",
                        header_.magic, header_.tag, header_.length, kMagic));
  }
  if (std::exchange(is_over_, is_goodbye)) {
    return absl::InternalError("has sent more after its last message: the stream is damaged");
  }
  if (is_goodbye) {
    receiver.OnGoodbye();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(destination_, receiver.OnHeader(header_.tag, static_cast<int64_t>(header_.length)));
  in_message_ = true;
  missing_ = static_cast<int64_t>(header_.length);
  if (missing_ == 0) EndMessage(receiver);
  return absl::OkStatus();
}

void TcpStream::EndMessage(Receiver& receiver) {
  in_message_ = false;
  receiver.OnMessage();
}

void TcpStream::Redirect(std::byte* destination) {
  CHECK(in_message_);
  const auto arrived = static_cast<size_t>(static_cast<int64_t>(header_.length) - missing_);
  if (arrived > 0) std::memcpy(destination, destination_, arrived);
  destination_ = destination;
}

absl::Status TcpStream::Closed() const {
  const bool in_the_middle = in_message_ || header_bytes_ > 0;
  return absl::UnavailableError(absl::StrCat("has closed its connection",
                                             in_the_middle ? " in the middle of a message" : "",
                                             ": its process has ended, and its own output says why"));
}

absl::Status TcpStream::WriteError(int error_number) const {
  return error_number == EPIPE ? Closed() : LostError(error_number);
}

void TcpStream::SayGoodbye() {
  // Inside a message the goodbye would be taken for the message's bytes.
  if (has_unsent()) return;
  MessageHeader goodbye = {.tag = kGoodbyeTag};
  const iovec part = {.iov_base = &goodbye, .iov_len = sizeof(goodbye)};
  // If the kernel does not take it the peer reports a failure, which a full send buffer at the end of a job is.
  if (channel_.Send({&part, 1}) == sizeof(goodbye) && !channel_.has_unsent()) HangUp(socket());
}

}  // namespace starring
