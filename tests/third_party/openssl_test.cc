#include <openssl/evp.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Openssl, Sha256OfTheEmptyMessage) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ASSERT_EQ(EVP_Digest("", 0, digest, &size, EVP_sha256(), nullptr), 1);
  ASSERT_EQ(size, 32u);
  EXPECT_EQ(digest[0], 0xe3);
  EXPECT_EQ(digest[31], 0x55);
}

}  // namespace
}  // namespace starring
