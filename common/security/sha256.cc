#include "common/security/sha256.h"

#include <openssl/evp.h>

#include <bit>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace starring {

static_assert(std::endian::native == std::endian::little, "digests and the wire are little-endian float32");

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// This uses OpenSSL's EVP interface, because version 3 has deprecated SHA256_Update. A failure below means that OpenSSL
// has no memory or no SHA-256; it never depends on the bytes, so it is no error of the world.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr);
  CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::Update(std::span<const std::byte> bytes) {
  CHECK_EQ(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), 1);
  return *this;
}

Sha256& Sha256::Update(std::string_view text) { return Update(std::as_bytes(std::span(text.data(), text.size()))); }

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK_EQ(EVP_DigestFinal_ex(context_.get(), digest, &size), 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::string Sha256Hex(std::span<const std::byte> bytes) { return Sha256().Update(bytes).HexDigest(); }
std::string Sha256Hex(std::string_view text) { return Sha256().Update(text).HexDigest(); }

}  // namespace starring
