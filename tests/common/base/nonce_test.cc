#include "common/base/nonce.h"

#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(NonceTest, ManyDrawsAreAllDifferentAndNotZero) {
  constexpr size_t kDraws = 1000;
  std::set<uint64_t> drawn;
  for (size_t i = 0; i < kDraws; ++i) drawn.insert(DrawNonce());
  EXPECT_EQ(drawn.size(), kDraws);
  EXPECT_FALSE(drawn.contains(0));
}

}  // namespace
}  // namespace starring
