#include "common/transport/tcp/tcp_handshake.h"

#include <string.h>

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/security/hmac_sha256.h"

namespace starring {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kCodeBytes = 32;
// Each code begins with its purpose, so that none can be used for another one.
constexpr char kGreets[] = "starring rank greets";
constexpr char kDials[] = "starring rank dials";
constexpr char kIsDialled[] = "starring rank is dialled";

// The payload of kHello, as it is in memory. Texts end with a zero byte.
struct HelloPayload {
  uint32_t purpose = 0;
  int32_t rank = 0;
  int32_t to_rank = 0;
  int32_t world_size = 0;
  uint32_t has_secret = 0;  // proves nothing: it is for the message to a rank that was started without the secret
  uint32_t has_tls = 0;
  char nonce[kNonceBytes] = {};
  char address[kTcpAddressBytesMax + 1] = {};
  char run_id[kRunIdBytesMax + 1] = {};
  char code[kCodeBytes] = {};  // of what is before it
};
static_assert(sizeof(HelloPayload) == 440 && sizeof(HelloPayload) <= kTcpHelloBytesMax);

std::string HelloCode(const std::string& token, absl::string_view payload) {
  return HmacSha256(token, absl::StrCat(kGreets, payload.substr(0, payload.size() - kCodeBytes)));
}

// The hello has a fixed length and contains the dialler's nonce, so no other three texts make the same code.
std::string Proof(const std::string& token, const char* side, const std::string& hello, const std::string& nonce) {
  return HmacSha256(token, absl::StrCat(side, hello, nonce));
}

// Whether a field that should end with a zero byte does.
template <size_t kSize>
bool EndsInField(const char (&text)[kSize]) {
  return memchr(text, '\0', kSize) != nullptr;
}

absl::Status WrongSecret() {
  return absl::UnauthenticatedError("has another job secret: give every rank of the job the same file as --job_secret");
}

}  // namespace

TcpDialer::TcpDialer(Socket socket, const TcpHello& hello, std::string token, const TlsContext* tls)
    : connection_(std::move(socket)), token_(std::move(token)), tls_(tls) {
  CHECK_EQ(hello.has_tls, tls_ != nullptr);
  CHECK(tls_ == nullptr || !token_.empty());
  CHECK_LE(hello.run_id.size(), kRunIdBytesMax);
  CHECK_LE(hello.address.size(), kTcpAddressBytesMax);
  HelloPayload payload = {.purpose = static_cast<uint32_t>(hello.purpose),
                          .rank = hello.rank,
                          .to_rank = hello.to_rank,
                          .world_size = hello.world_size,
                          .has_secret = token_.empty() ? 0u : 1u,
                          .has_tls = hello.has_tls ? 1u : 0u};
  DrawBytes(kNonceBytes).copy(payload.nonce, kNonceBytes);
  // The payload begins as zeros and the CHECKs leave a byte free, so each text ends with a zero byte.
  hello.address.copy(payload.address, kTcpAddressBytesMax);
  hello.run_id.copy(payload.run_id, kRunIdBytesMax);
  hello_.assign(reinterpret_cast<const char*>(&payload), sizeof(payload));
  hello_.replace(sizeof(payload) - kCodeBytes, kCodeBytes, HelloCode(token_, hello_));
  connection_.Send(TcpFrameKind::kHello, hello_);
}

absl::StatusOr<bool> TcpDialer::Advance() {
  connection_.Flush();
  // The loop ends: each kind of frame is taken once, and any other frame is an error (OnFrame).
  while (true) {
    if (is_in_tls_handshake_) {
      ASSIGN_OR_RETURN(const bool is_done, connection_.Handshake());
      if (!is_done) return false;
      is_in_tls_handshake_ = false;
    }
    ASSIGN_OR_RETURN(const std::optional<TcpFrame> frame, connection_.Receive(kTcpHelloBytesMax));
    if (!frame.has_value()) return false;
    ASSIGN_OR_RETURN(const bool is_welcome, OnFrame(*frame));
    if (is_welcome) return true;
  }
}

absl::StatusOr<bool> TcpDialer::OnFrame(const TcpFrame& frame) {
  // Each only once: an end that sends challenges for ever would be answered for ever.
  if (frame.kind == TcpFrameKind::kChallenge && !is_challenged_) {
    RETURN_IF_ERROR(OnChallenge(frame.payload));
    return false;
  }
  if (frame.kind == TcpFrameKind::kBeginTls && tls_ != nullptr && !connection_.is_encrypted() && !is_challenged_) {
    if (connection_.has_unsent()) {
      return absl::InvalidArgumentError("is no rank of a job: it answers a hello that it has not heard");
    }
    connection_.BeginTls(*tls_, TlsContext::Side::kDials);
    is_in_tls_handshake_ = true;
    return false;
  }
  if (frame.kind == TcpFrameKind::kWelcome) {
    // An end that welcomes every peer but cannot prove that it knows the secret belongs to no rank of this job.
    if (!is_genuine_) return WrongSecret();
    // A rank of the job without --tls refuses this one. The welcome is another host's, which wants to read along.
    if (tls_ != nullptr && !connection_.is_encrypted()) {
      return absl::UnauthenticatedError("welcomes this rank without TLS: a host on the way has changed its answer");
    }
    return true;
  }
  return absl::InvalidArgumentError("is no rank of a job: it answers a hello with something else");
}

// Sends its own proof even if the other side's is wrong: that side then refuses, and both can say why.
absl::Status TcpDialer::OnChallenge(const std::string& payload) {
  if (payload.size() != kNonceBytes + kProofBytes) {
    return absl::InvalidArgumentError("is no rank of a job: its challenge has a wrong length");
  }
  const std::string nonce = payload.substr(0, kNonceBytes);
  is_challenged_ = true;
  is_genuine_ = SameToken(payload.substr(kNonceBytes), Proof(token_, kIsDialled, hello_, nonce));
  connection_.Send(TcpFrameKind::kProof, Proof(token_, kDials, hello_, nonce));
  return absl::OkStatus();
}

bool TcpHellosHeard::Add(const std::string& code) {
  if (!codes_.insert(code).second) return false;
  in_order_.push_back(code);
  if (in_order_.size() > kTcpHellosHeardMax) {
    codes_.erase(in_order_.front());
    in_order_.pop_front();
  }
  return true;
}

absl::StatusOr<bool> TcpDoorkeeper::Advance() {
  connection_.Flush();
  while (true) {
    if (is_in_tls_handshake_) {
      ASSIGN_OR_RETURN(const bool is_done, connection_.Handshake());
      if (!is_done) return false;
      is_in_tls_handshake_ = false;
      Challenge();
    }
    absl::StatusOr<std::optional<TcpFrame>> frame = connection_.Receive(kTcpHelloBytesMax);
    if (!frame.ok()) {
      // Another program, or one that is gone, understands no refusal.
      if (connection_.has_other_version()) {
        connection_.Refuse(absl::InvalidArgumentError(absl::StrCat(
            "this rank speaks version ", kTcpFrameVersion, " of the rendezvous: start all ranks from one build")));
      }
      return frame.status();
    }
    if (!frame->has_value()) return false;
    const TcpFrame& got = **frame;
    if (got.kind == TcpFrameKind::kHello && hello_bytes_.empty()) {
      RETURN_IF_ERROR(OnHello(got.payload));
    } else if (got.kind == TcpFrameKind::kProof && !nonce_.empty()) {
      RETURN_IF_ERROR(OnProof(got.payload));
      return true;
    } else {
      return absl::InvalidArgumentError("is no rank of a job: it does not begin with a hello");
    }
  }
}

absl::Status TcpDoorkeeper::OnHello(const std::string& payload) {
  HelloPayload hello;
  if (payload.size() != sizeof(hello)) {
    return absl::InvalidArgumentError("is no rank of a job: its hello has a wrong length");
  }
  std::memcpy(&hello, payload.data(), sizeof(hello));
  if (!EndsInField(hello.address) || !EndsInField(hello.run_id)) {
    return absl::InvalidArgumentError("is no rank of a job: a text of its hello does not end");
  }
  // They are printed, and rank 0's table has a line for each address.
  if (!IsPrintable(hello.address) || !IsPrintable(hello.run_id)) {
    return absl::InvalidArgumentError("is no rank of a job: a text of its hello has control characters");
  }
  hello_ = {.purpose = static_cast<TcpHello::Purpose>(hello.purpose),
            .rank = hello.rank,
            .to_rank = hello.to_rank,
            .world_size = hello.world_size,
            .has_tls = hello.has_tls != 0,
            .run_id = hello.run_id,
            .address = hello.address};
  // A side without any secret gets a text of its own, because its way out is another one.
  if ((hello.has_secret != 0) != !token_.empty()) {
    connection_.Refuse(absl::UnauthenticatedError(
        token_.empty() ? "you have a --job_secret, and this rank has none: give every rank the same file"
                       : "this job has a --job_secret, and you have none: give every rank the same file"));
    return absl::UnauthenticatedError(token_.empty() ? "has a --job_secret, and this rank has none"
                                                     : "has no --job_secret, and this job has one");
  }
  const std::string code = payload.substr(payload.size() - kCodeBytes);
  if (!SameToken(code, HelloCode(token_, payload))) {
    connection_.Refuse(absl::UnauthenticatedError(
        "you have another job secret: give every rank of the job the same file as --job_secret"));
    return WrongSecret();
  }
  // The code is known to be a rank's here, so a stranger cannot push the ranks' hellos out of the list.
  // Without a secret everybody can make a fresh one.
  if (!token_.empty() && !heard_->Add(code)) {
    return absl::UnauthenticatedError("has sent a hello that was heard before: it has recorded another rank's");
  }
  hello_bytes_ = payload;
  if (tls_ == nullptr || !hello_.has_tls) {
    Challenge();
    return absl::OkStatus();
  }
  connection_.Send(TcpFrameKind::kBeginTls, "");
  // The rest of this frame would be encrypted if TLS began before all of it has left.
  if (connection_.has_unsent()) return absl::UnavailableError("does not read what it is sent");
  connection_.BeginTls(*tls_, TlsContext::Side::kIsDialled);
  is_in_tls_handshake_ = true;
  return absl::OkStatus();
}

void TcpDoorkeeper::Challenge() {
  nonce_ = DrawBytes(kNonceBytes);
  connection_.Send(TcpFrameKind::kChallenge, absl::StrCat(nonce_, Proof(token_, kIsDialled, hello_bytes_, nonce_)));
}

absl::Status TcpDoorkeeper::OnProof(const std::string& payload) {
  if (SameToken(payload, Proof(token_, kDials, hello_bytes_, nonce_))) return absl::OkStatus();
  connection_.Refuse(absl::UnauthenticatedError(
      "you have another job secret: give every rank of the job the same file as --job_secret"));
  return WrongSecret();
}

}  // namespace starring
