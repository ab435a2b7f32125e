// HMAC-SHA-256 (RFC 2104, FIPS 180-4) without OpenSSL, for the proofs of ranks (common/transport) and of a star
// (common/wire): it is also part of a library that other people's processes load (worker/python), which may have
// another OpenSSL of their own. For short texts: some 200 MB/s. The digests of parameters and files are those of
// sha256.h.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_SECURITY_HMAC_SHA256_H_
#define STARRING_COMMON_SECURITY_HMAC_SHA256_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace starring {

// The code of `text`: 32 bytes, which only those who know the key can make. Compare by SameToken.
std::string HmacSha256(std::string_view key, std::string_view text);

// `count` bytes from the kernel that no other process can guess.
std::string DrawBytes(size_t count);

// Takes the same time for any two tokens of one length: a guess that begins right must not look different.
[[nodiscard]] bool SameToken(absl::string_view a, absl::string_view b);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_HMAC_SHA256_H_
