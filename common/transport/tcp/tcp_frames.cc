#include "common/transport/tcp/tcp_frames.h"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/network/address.h"

namespace starring {
namespace {

static_assert(std::endian::native == std::endian::little, "heads are sent as they are in memory");

constexpr uint64_t kMagic = 0x3a6b6e6172727473;  // "strrank:"

struct Head {
  uint64_t magic = kMagic;
  uint32_t version = kTcpFrameVersion;
  TcpFrameKind kind = TcpFrameKind::kHello;
  uint32_t length = 0;
  // A field of its own, because padding without a name could be sent uninitialised.
  uint32_t unused = 0;
};
static_assert(sizeof(Head) == 24);

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

// `text`, which another process has sent, as it may be printed on a terminal.
std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (IsControl(c)) {
      absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// A refusal is the status's code and its text. The text is another process's, and is printed.
std::string EncodeStatus(const absl::Status& status) {
  const auto code = static_cast<uint32_t>(status.code());
  std::string payload(reinterpret_cast<const char*>(&code), sizeof(code));
  payload += std::string(status.message());
  payload.resize(std::min(payload.size(), static_cast<size_t>(kStatusTextBytesMax)));
  return payload;
}

absl::Status DecodeStatus(std::string_view payload) {
  uint32_t code = 0;
  if (payload.size() < sizeof(code)) return absl::InvalidArgumentError("refused, without a reason");
  std::memcpy(&code, payload.data(), sizeof(code));
  const std::string text = absl::StrCat("says: ", Escape(payload.substr(sizeof(code))));
  // The number is another process's. With 0 the refusal would be no error.
  const bool is_known = code > 0 && code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal, text);
}

}  // namespace

bool IsPrintable(std::string_view text) { return std::none_of(text.begin(), text.end(), IsControl); }

TcpFrameConnection::TcpFrameConnection(Socket socket)
    : channel_(std::move(socket)), peer_(PeerNameOfSocket(channel_.fd())) {
  if (peer_.empty()) peer_ = "a peer";
}

void TcpFrameConnection::Send(TcpFrameKind kind, std::string_view payload) {
  const Head head = {.kind = kind, .length = static_cast<uint32_t>(payload.size())};
  unsent_.append(reinterpret_cast<const char*>(&head), sizeof(head));
  unsent_.append(payload);
  Flush();
}

void TcpFrameConnection::Flush() {
  if (!channel_.Flush()) return;
  while (!unsent_.empty()) {
    const iovec part = {.iov_base = unsent_.data(), .iov_len = unsent_.size()};
    const ssize_t written = channel_.Send({&part, 1});
    if (written < 0) return;
    // Frames before the welcome are short, so moving the rest to the front costs little.
    unsent_.erase(0, static_cast<size_t>(written));
  }
}

void TcpFrameConnection::BeginTls(const TlsContext& context, TlsContext::Side side) {
  // The session begins with the next byte in either direction.
  CHECK(!has_unsent() && received_.empty());
  channel_.Encrypt(context.NewSession(fd(), side));
}

void TcpFrameConnection::Refuse(const absl::Status& why) {
  // A peer that does not take a refusal need not know why.
  Send(TcpFrameKind::kRefusal, EncodeStatus(why));
  HangUp(socket());
}

// Whether `size` bytes of the frame have arrived.
absl::StatusOr<bool> TcpFrameConnection::Fill(size_t size) {
  while (received_.size() < size) {
    const size_t before = received_.size();
    received_.resize(size);
    const iovec part = {.iov_base = received_.data() + before, .iov_len = size - before};
    const ssize_t got = channel_.Receive({&part, 1});
    // Kept now: resize may change errno.
    const int error = got < 0 ? errno : 0;
    received_.resize(before + static_cast<size_t>(std::max<ssize_t>(0, got)));
    if (got > 0) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return false;
    return absl::UnavailableError(got == 0 ? "has closed the connection"
                                           : absl::StrCat("cannot be reached any more, ", ErrnoText(error)));
  }
  return true;
}

absl::StatusOr<std::optional<TcpFrame>> TcpFrameConnection::Receive(size_t payload_bytes_max) {
  Head head;
  ASSIGN_OR_RETURN(const bool has_head, Fill(sizeof(head)));
  if (!has_head) return std::optional<TcpFrame>();
  // The head stays in received_ until the frame is complete, so a later call reads it again.
  std::memcpy(&head, received_.data(), sizeof(head));
  if (head.magic != kMagic) return absl::InvalidArgumentError("is no rank of a job: it speaks another protocol");
  if (head.version != kTcpFrameVersion) {
    has_other_version_ = true;
    return absl::InvalidArgumentError(absl::StrCat("speaks version ", head.version,
                                                   " of the rendezvous, and this process version ", kTcpFrameVersion,
                                                   ": start all ranks from one build"));
  }
  if (head.kind == TcpFrameKind::kRefusal) payload_bytes_max = static_cast<size_t>(kStatusTextBytesMax);
  // The length comes from another process, and is checked before memory is taken.
  if (head.length > payload_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("announces ", head.length, " bytes where at most ", payload_bytes_max, " are allowed"));
  }
  ASSIGN_OR_RETURN(const bool is_complete, Fill(sizeof(head) + head.length));
  if (!is_complete) return std::optional<TcpFrame>();
  TcpFrame frame = {.kind = head.kind, .payload = received_.substr(sizeof(head))};
  received_.clear();
  if (frame.kind == TcpFrameKind::kRefusal) return DecodeStatus(frame.payload);
  return std::optional<TcpFrame>(std::move(frame));
}

}  // namespace starring
