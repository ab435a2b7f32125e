// SHA-256 (FIPS 180-4) by OpenSSL, as 64 hexadecimal digits.
#ifndef STARRING_COMMON_SECURITY_SHA256_H_
#define STARRING_COMMON_SECURITY_SHA256_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace starring {

// A digest of bytes that come piece by piece; how they are cut into pieces does not matter. One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  Sha256& Update(std::span<const std::byte> bytes);
  Sha256& Update(std::string_view text);

  // REQUIRES: called once; nothing may follow.
  std::string HexDigest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string Sha256Hex(std::span<const std::byte> bytes);
std::string Sha256Hex(std::string_view text);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_SHA256_H_
