#include "common/security/sha256.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// FIPS 180-4 examples (NIST's SHA256.pdf), and the empty message.
constexpr char kOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kOfTwoBlocks[] = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
constexpr char kOfNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

TEST(Sha256Test, PublishedDigests) {
  EXPECT_EQ(Sha256Hex(std::string_view("abc")), kOfAbc);
  EXPECT_EQ(Sha256Hex(std::string_view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")), kOfTwoBlocks);
  EXPECT_EQ(Sha256Hex(std::string_view("")), kOfNothing);
}

TEST(Sha256Test, PiecesDoNotMatter) {
  Sha256 digest;
  digest.Update("a").Update("").Update("bc");
  Sha256 moved = std::move(digest);
  EXPECT_EQ(moved.HexDigest(), kOfAbc);
}

TEST(Sha256Test, FloatsAreTheirLittleEndianBytes) {
  const std::vector<float> values = {1.0f, -2.0f};
  EXPECT_EQ(Sha256Hex(std::as_bytes(std::span(values))),
            Sha256Hex(std::string_view("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8)));
}

// RFC 4231, test cases 1 and 2; the last one is the code without a key of no text.
TEST(HmacSha256Test, PublishedCodes) {
  const auto hex = [](const std::string& code) { return absl::BytesToHexString(code); };
  EXPECT_EQ(hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(HmacSha256("", "")), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

}  // namespace
}  // namespace starring
