#include "common/security/sha256.h"

#include <string>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace starring
