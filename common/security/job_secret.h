// The secret of one job: a file that only its owner may read, with a private key and a certificate that the key has
// signed. Whoever can read the file is a member of the job.
//
// Processes prove to each other that they have it by keys that follow from it, one for each use, so that what one
// protocol shows is worth nothing in another:
//
//   key = HMAC(SHA-256 of the file, label)
//
// as HKDF expands a key (RFC 5869, 2.3). The labels are here and, for jobs of PyTorch, in worker/python/starring/
// _control.py. Neither the secret nor a key travels. With TLS, servers and workers present the certificate and trust no
// other. Keys and certificates (X.509) are PEM text; OpenSSL makes and reads them.
//
// Thread safety: immutable values and pure functions.
#ifndef STARRING_COMMON_SECURITY_JOB_SECRET_H_
#define STARRING_COMMON_SECURITY_JOB_SECRET_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

struct KeyAndCertificate {
  std::string private_key;
  std::string certificate;
};

// A fresh key (ECDSA, P-256) and a certificate that the key signs. The certificate is valid for ten years, for the host
// name `name`, and cannot sign others.
absl::StatusOr<KeyAndCertificate> MakeSelfSigned(const std::string& name);

// The first private key and the first certificate in `pem`. InvalidArgument if one is missing, or they do not belong
// together, or the certificate is not valid now.
absl::StatusOr<KeyAndCertificate> ParseKeyAndCertificate(const std::string& pem);

// InvalidArgument unless `private_key` belongs to the first certificate in `certificates`, which must be valid now.
absl::Status CheckKeyAndCertificate(const std::string& private_key, const std::string& certificates);

// InvalidArgument if there is no certificate in `pem`.
absl::Status CheckCertificate(const std::string& pem);

// The name in the certificate of every secret: the certificate counts, not the host that presents it.
inline constexpr char kJobSecretName[] = "starring";

class JobSecret {
 public:
  // NotFound or InvalidArgument, with the way out, for a file that is missing, may be read by others, or holds no key
  // and certificate.
  static absl::StatusOr<JobSecret> Load(const std::string& path);

  enum class KeyUse {
    kRequests,  // of a star over gRPC: common/wire/request_proof.h
    kRanks,     // over TCP: common/transport/tcp/tcp_handshake.h
  };
  std::string KeyFor(KeyUse use) const;  // 32 bytes
  const std::string& private_key() const { return pair_.private_key; }
  const std::string& certificate() const { return pair_.certificate; }

 private:
  JobSecret(std::string digest, KeyAndCertificate pair) : digest_(std::move(digest)), pair_(std::move(pair)) {}

  std::string digest_;  // of the whole file
  KeyAndCertificate pair_;
};

// Writes a fresh secret to `path`, with mode 0600. InvalidArgument if there is such a file already.
absl::Status MakeJobSecret(const std::string& path);

// Writes the secret at `from` to `to`, with mode 0600. A group may read `from`, as in a volume of Kubernetes or among
// the credentials of systemd; no other function here takes such a file. Does nothing if `to` is that copy already,
// because a container may be started again. Fails as JobSecret::Load and MakeJobSecret do.
absl::Status CopyJobSecret(const std::string& from, const std::string& to);

// The content of a file of keys or certificates. kOwnerOnly refuses a file that others may read or write, and
// kOwnerAndGroup one of which a group may do more than read it. Fails as JobSecret::Load does, and with InvalidArgument
// for what is no plain file (a pipe, a device) and for a file that is longer than limits.h allows.
enum class FileReaders { kOwnerOnly, kOwnerAndGroup, kAny };
absl::StatusOr<std::string> ReadPemFile(const std::string& path, FileReaders readers);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_JOB_SECRET_H_
