#include "common/transport/tcp/openssl_tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/network/dial.h"

namespace starring {
namespace {

constexpr size_t kRecordBytesMax = static_cast<size_t>(kTlsRecordBytesMax);
constexpr size_t kRecordHeadBytes = 5;
// A record is longer than its content by a head, a type and a tag: 22 bytes, rounded up.
constexpr size_t kRecordExtraBytes = 32;
// Encrypted bytes that leave by one call.
constexpr size_t kSealedBytesMax = 4 * (kRecordBytesMax + kRecordExtraBytes);
// The fastest one where the processor has instructions for AES; a connection needs no other.
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256";

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// The newest error of this thread, whose queue is then empty.
std::string OpensslText() {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_peek_last_error(); error != 0) ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return text;
}

class OpensslSession final : public TlsSession {
 public:
  OpensslSession(std::unique_ptr<SSL, Free> ssl, int fd, int64_t records_per_key);

  absl::StatusOr<bool> Handshake() override;
  ssize_t Send(std::span<const iovec> parts) override;
  ssize_t Receive(std::span<const iovec> parts) override;
  bool Flush() override;
  bool has_unsent() const override { return sealed_begin_ < sealed_.size(); }
  int64_t unread_bytes() const override;

 private:
  static const BIO_METHOD* Method();
  static int WriteSealed(BIO* bio, const char* data, int size);
  static int ReadSealed(BIO* bio, char* data, int size);
  int ReceiveSealed(BIO* bio, char* data, size_t size);
  bool Seal(const void* data, size_t size);
  bool SendSealed();
  void Release();
  void Lose(int error);

  const std::unique_ptr<SSL, Free> ssl_;
  const int fd_;
  const int64_t records_per_key_;
  int64_t records_sealed_ = 0;

  // Encrypted bytes from sealed_begin_ on have still to leave.
  std::vector<char> sealed_;
  size_t sealed_begin_ = 0;
  int send_error_ = 0;  // errno; 0: none. It stays

  // The head of the record that follows the one that was read.
  std::array<char, kRecordHeadBytes> ahead_;
  size_t ahead_size_ = 0;
  std::optional<int> end_;  // of what arrives: 0: closed by the peer; otherwise errno. It stays
};

OpensslSession::OpensslSession(std::unique_ptr<SSL, Free> ssl, int fd, int64_t records_per_key)
    : ssl_(std::move(ssl)), fd_(fd), records_per_key_(records_per_key) {
  BIO* const bio = BIO_new(Method());
  CHECK(bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);  // owns it
}

// OpenSSL's own methods for sockets make a system call for each record that is sent, and two for each that is received.
const BIO_METHOD* OpensslSession::Method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "starring");
    CHECK(made != nullptr);
    BIO_meth_set_write(made, WriteSealed);
    BIO_meth_set_read(made, ReadSealed);
    // OpenSSL flushes what it has written, and fails if the method cannot. The bytes leave later, by SendSealed.
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    return made;
  }();
  return method;
}

// Takes everything, so that no call of OpenSSL has to be repeated with the same bytes. Send limits how much that is.
int OpensslSession::WriteSealed(BIO* bio, const char* data, int size) {
  auto* const self = static_cast<OpensslSession*>(BIO_get_data(bio));
  self->sealed_.insert(self->sealed_.end(), data, data + size);
  return size;
}

int OpensslSession::ReadSealed(BIO* bio, char* data, int size) {
  auto* const self = static_cast<OpensslSession*>(BIO_get_data(bio));
  return size <= 0 ? 0 : self->ReceiveSealed(bio, data, static_cast<size_t>(size));
}

// OpenSSL asks for the head of a record and then for its rest. With the rest comes the next head: the rest of *that*
// record stays in the kernel, so that the descriptor stays readable.
int OpensslSession::ReceiveSealed(BIO* bio, char* data, size_t size) {
  BIO_clear_retry_flags(bio);
  if (ahead_size_ > 0) {
    const size_t step = std::min(size, ahead_size_);
    std::memcpy(data, ahead_.data(), step);
    ahead_size_ -= step;
    std::memmove(ahead_.data(), ahead_.data() + step, ahead_size_);
    return static_cast<int>(step);
  }
  std::array<iovec, 2> parts = {
      {{.iov_base = data, .iov_len = size}, {.iov_base = ahead_.data(), .iov_len = ahead_.size()}}};
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = size > kRecordHeadBytes ? 2 : 1;
  ssize_t got = -1;
  do {
    got = recvmsg(fd_, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    BIO_set_retry_read(bio);
    return -1;
  }
  if (got <= 0) {
    end_ = got == 0 ? 0 : errno;
    return static_cast<int>(got);
  }
  ahead_size_ = static_cast<size_t>(got) - std::min(size, static_cast<size_t>(got));
  return static_cast<int>(std::min(size, static_cast<size_t>(got)));
}

absl::StatusOr<bool> OpensslSession::Handshake() {
  // SSL_get_error also looks at the thread's queue of errors, in which an earlier failure may be left.
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const int reason = SSL_get_error(ssl_.get(), result);
  // Also an alert, which tells the peer why.
  if (!Flush()) end_ = errno;
  if (end_.has_value()) {
    ERR_clear_error();
    return absl::UnavailableError(*end_ == 0 ? "has closed the connection"
                                             : absl::StrCat("cannot be reached any more, ", ErrnoText(*end_)));
  }
  if (result == 1) return !has_unsent();
  if (reason == SSL_ERROR_WANT_READ) return false;
  const std::string text = OpensslText();
  end_ = EBADMSG;
  return absl::UnauthenticatedError(absl::StrCat("has not shown the certificate of this job's secret by TLS (", text,
                                                 "): give every rank of the job the same file as --job_secret"));
}

bool OpensslSession::Seal(const void* data, size_t size) {
  size_t taken = 0;
  ERR_clear_error();
  if (SSL_write_ex(ssl_.get(), data, size, &taken) != 1 || taken != size) return false;
  // The peer is told by a message of TLS, and need not answer.
  return ++records_sealed_ % records_per_key_ != 0 || SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

// Drops what waits: an event that says that it may be sent would come for ever.
void OpensslSession::Lose(int error) {
  send_error_ = error;
  sealed_ = std::vector<char>();
  sealed_begin_ = 0;
  errno = error;
}

ssize_t OpensslSession::Send(std::span<const iovec> parts) {
  if (!SendSealed()) return -1;
  if (has_unsent()) {
    errno = EAGAIN;
    return -1;
  }
  // All that was encrypted before has left, so the encrypted bytes in memory are bounded.
  size_t left = 0;
  for (const iovec& part : parts) left += part.iov_len;
  std::array<char, kRecordBytesMax> gathered;
  size_t part = 0, begin = 0;  // of the next byte
  ssize_t taken = 0;
  while (left > 0 && !has_unsent()) {
    // One allocation has room for the records of this call, up to kSealedBytesMax.
    sealed_.reserve(std::min(kSealedBytesMax, left + (1 + left / kRecordBytesMax) * kRecordExtraBytes));
    while (left > 0 && sealed_.size() + kRecordBytesMax + kRecordExtraBytes <= kSealedBytesMax) {
      while (begin == parts[part].iov_len) ++part, begin = 0;
      const size_t size = std::min(left, kRecordBytesMax);
      const char* record = static_cast<const char*>(parts[part].iov_base) + begin;
      if (parts[part].iov_len - begin >= size) {
        begin += size;
      } else {
        // Heads and short messages share a record.
        record = gathered.data();
        for (size_t filled = 0; filled < size;) {
          while (begin == parts[part].iov_len) ++part, begin = 0;
          const size_t step = std::min(size - filled, parts[part].iov_len - begin);
          std::memcpy(gathered.data() + filled, static_cast<const char*>(parts[part].iov_base) + begin, step);
          filled += step;
          begin += step;
        }
      }
      if (!Seal(record, size)) {
        ERR_clear_error();
        Lose(EBADMSG);
        return -1;
      }
      // Encrypted bytes count as taken: a record cannot be taken back, and must leave in its turn.
      left -= size;
      taken += static_cast<ssize_t>(size);
    }
    if (!SendSealed()) return -1;
  }
  Release();
  return taken;
}

bool OpensslSession::Flush() {
  const bool is_well = SendSealed();
  Release();
  return is_well;
}

bool OpensslSession::SendSealed() {
  if (send_error_ != 0) {
    Lose(send_error_);
    return false;
  }
  while (has_unsent()) {
    const ssize_t sent =
        send(fd_, sealed_.data() + sealed_begin_, sealed_.size() - sealed_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (sent < 0) {
      Lose(errno);
      return false;
    }
    sealed_begin_ += static_cast<size_t>(sent);
  }
  sealed_.clear();
  sealed_begin_ = 0;
  return true;
}

// A thousand idle connections hold no memory.
void OpensslSession::Release() {
  if (!has_unsent()) sealed_ = std::vector<char>();
}

int64_t OpensslSession::unread_bytes() const {
  const int decrypted = SSL_pending(ssl_.get());
  return decrypted == 0 && end_.has_value() ? 1 : decrypted;
}

ssize_t OpensslSession::Receive(std::span<const iovec> parts) {
  ssize_t got = 0;
  for (const iovec& part : parts) {
    for (size_t filled = 0; filled < part.iov_len;) {
      size_t step = 0;
      // Bytes that were decrypted before the end are delivered before it.
      if (SSL_pending(ssl_.get()) == 0 && end_.has_value()) {
        if (got > 0) return got;
        errno = *end_;
        return *end_ == 0 ? 0 : -1;
      }
      ERR_clear_error();
      const int result =
          SSL_read_ex(ssl_.get(), static_cast<char*>(part.iov_base) + filled, part.iov_len - filled, &step);
      if (result == 1) {
        filled += step;
        got += static_cast<ssize_t>(step);
        continue;
      }
      if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) {
        if (got > 0) return got;
        errno = EAGAIN;
        return -1;
      }
      // ReceiveSealed has set end_ if the connection ended. Otherwise a record did not decrypt, or was an alert.
      if (!end_.has_value()) end_ = EBADMSG;
      ERR_clear_error();
    }
  }
  return got;
}

class OpensslContext final : public TlsContext {
 public:
  OpensslContext(std::unique_ptr<SSL_CTX, Free> context, int64_t records_per_key)
      : context_(std::move(context)), records_per_key_(records_per_key) {}

  std::unique_ptr<TlsSession> NewSession(int fd, Side side) const override {
    std::unique_ptr<SSL, Free> ssl(SSL_new(context_.get()));
    CHECK(ssl != nullptr);
    if (side == Side::kDials) {
      SSL_set_connect_state(ssl.get());
    } else {
      SSL_set_accept_state(ssl.get());
    }
    return std::make_unique<OpensslSession>(std::move(ssl), fd, records_per_key_);
  }

 private:
  const std::unique_ptr<SSL_CTX, Free> context_;
  const int64_t records_per_key_;
};

std::unique_ptr<X509, Free> ReadCertificate(const std::string& pem) {
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return std::unique_ptr<X509, Free>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

std::unique_ptr<EVP_PKEY, Free> ReadKey(const std::string& pem) {
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return std::unique_ptr<EVP_PKEY, Free>(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> MakeTlsContext(const TransportSecurity::Tls& tls,
                                                                 int64_t records_per_key) {
  CHECK_GE(records_per_key, 1);
  std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_method()));
  const std::unique_ptr<X509, Free> own = ReadCertificate(tls.certificate), trusted = ReadCertificate(tls.trusted);
  const std::unique_ptr<EVP_PKEY, Free> key = ReadKey(tls.private_key);
  const bool is_set = context != nullptr && own != nullptr && trusted != nullptr && key != nullptr &&
                      SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(context.get(), kCiphers) == 1 &&
                      SSL_CTX_use_certificate(context.get(), own.get()) == 1 &&
                      SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1 &&
                      SSL_CTX_check_private_key(context.get()) == 1 &&
                      X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), trusted.get()) == 1 &&
                      // The trusted certificate need be no authority's.
                      X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN) == 1 &&
                      // Tickets are for resuming a session, which no rank does.
                      SSL_CTX_set_num_tickets(context.get(), 0) == 1;
  if (!is_set) {
    return absl::InvalidArgumentError(absl::StrCat("OpenSSL cannot use the certificate for TLS: ", OpensslText()));
  }
  // Without the second flag a side that is dialled would accept a peer that shows no certificate.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // Buffers of a thousand idle connections are free.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  return std::make_shared<const OpensslContext>(std::move(context), records_per_key);
}

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContextOf(const TransportSecurity& security) {
  if (!security.tls.has_value()) return nullptr;
  return MakeTlsContext(*security.tls);
}

}  // namespace starring
