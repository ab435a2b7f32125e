#include "common/security/hmac_sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

std::string Hex(const std::string& code) { return absl::BytesToHexString(code); }

std::string CodeOfOpenSsl(const std::string& key, const std::string& text) {
  unsigned char code[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EXPECT_NE(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(text.data()), text.size(), code, &size),
            nullptr);
  return {reinterpret_cast<const char*>(code), size};
}

// RFC 4231, test cases 1, 2, 6 and 7; the last one is the code without a key of no text.
TEST(HmacSha256Test, PublishedCodes) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "This is a test using a larger than block-size key and a larger than block-size data. The "
                           "key needs to be hashed before being used by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
  EXPECT_EQ(Hex(HmacSha256("", "")), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

// Every length of the last block: its padding has one block or two.
TEST(HmacSha256Test, AnyLengthIsAsOpenSslHasIt) {
  for (size_t length = 0; length <= 200; ++length) {
    std::string key, text;
    for (size_t i = 0; i < length; ++i) {
      key.push_back(static_cast<char>(7 * i + length));
      text.push_back(static_cast<char>(31 * i + 3 * length));
    }
    EXPECT_EQ(Hex(HmacSha256(key, text)), Hex(CodeOfOpenSsl(key, text))) << length;
  }
}

TEST(HmacSha256Test, TokensAreComparedWhole) {
  EXPECT_TRUE(SameToken("", ""));
  EXPECT_TRUE(SameToken("abc", "abc"));
  EXPECT_FALSE(SameToken("abc", "abd"));
  EXPECT_FALSE(SameToken("abc", "xbc"));
  EXPECT_FALSE(SameToken("abc", "ab"));
  EXPECT_FALSE(SameToken("", "abc"));
}

}  // namespace
}  // namespace starring
