#include "common/job/bucket_map.h"

#include <algorithm>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(BucketMapTest, BucketZeroIsTheEndOfTheVector) {
  const int64_t block = ReductionBlockElements(2);
  const BucketMap map =
      BucketMap::Create({.element_count = 2 * block + 160, .bucket_bytes = 1, .world_size = 2}).value();
  ASSERT_EQ(map.bucket_count(), 3);
  EXPECT_EQ(map.bucket_bytes(), block * 4);
  EXPECT_EQ(map.bucket(0), (ElementRange{2 * block, 2 * block + 160}));
  EXPECT_EQ(map.bucket(1), (ElementRange{block, 2 * block}));
  EXPECT_EQ(map.bucket(2), (ElementRange{0, block}));
}

TEST(BucketMapTest, BucketsAreWholeBlocksAndCoverTheVector) {
  for (const int world_size : {1, 2, 3, 5, 8, 16, 100}) {
    const int64_t block = ReductionBlockElements(world_size);
    for (const int64_t element_count : {int64_t{1}, int64_t{16}, block, block + 16, 7 * block + 48}) {
      for (const int64_t bucket_bytes : {int64_t{1}, int64_t{65536}, 3 * block * 4, kBucketBytesMax}) {
        const BucketMap map =
            BucketMap::Create({.element_count = element_count, .bucket_bytes = bucket_bytes, .world_size = world_size})
                .value();
        int64_t end = element_count;
        for (int b = 0; b < map.bucket_count(); ++b) {
          EXPECT_EQ(map.bucket(b).end, end);
          end = map.bucket(b).begin;
          EXPECT_EQ(end % block, 0);
          EXPECT_GT(map.bucket(b).size(), 0);
          EXPECT_EQ(map.BucketOf(map.bucket(b).begin), b);
          EXPECT_EQ(map.BucketOf(map.bucket(b).end - 1), b);
        }
        EXPECT_EQ(end, 0);
      }
    }
  }
}

// A bucket is exchanged while backward computes the next one: a job with one bucket overlaps nothing. resnet20 has
// 272,474 parameters.
TEST(BucketMapTest, ASmallModelHasSeveralBucketsWithManyRanks) {
  for (const int world_size : {2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64}) {
    const BucketMap map =
        BucketMap::Create({.element_count = 272'480, .bucket_bytes = 1, .world_size = world_size}).value();
    EXPECT_GE(map.bucket_count(), world_size == 3 || world_size == 4 ? 3 : 4) << world_size;
  }
}

// Flags that cut alike must agree when processes compare them.
TEST(BucketMapTest, EqualCutsHaveEqualBucketBytes) {
  const auto bytes = [](int64_t bucket_bytes) {
    return BucketMap::Create(
               {.element_count = 4 * ReductionBlockElements(2), .bucket_bytes = bucket_bytes, .world_size = 2})
        .value()
        .bucket_bytes();
  };
  const int64_t block_bytes = ReductionBlockElements(2) * 4;
  EXPECT_EQ(bytes(1), bytes(block_bytes));
  EXPECT_EQ(bytes(4 * block_bytes), bytes(kBucketBytesMax));
  EXPECT_NE(bytes(block_bytes), bytes(block_bytes + 1));
}

// A size that one process has rounded must be accepted by another.
TEST(BucketMapTest, RoundsToNoMoreThanTheLimit) {
  for (const int world_size : {1, 3, 7, 1000, kWorldSizeMax}) {
    const auto create = [&](int64_t bucket_bytes) {
      const auto map = BucketMap::Create(
          {.element_count = int64_t{1} << 31, .bucket_bytes = bucket_bytes, .world_size = world_size});
      EXPECT_TRUE(map.ok()) << map.status();
      return map->bucket_bytes();
    };
    const int64_t rounded = create(kBucketBytesMax);
    EXPECT_LE(rounded, kBucketBytesMax);
    EXPECT_GT(rounded, kBucketBytesMax / 2);
    EXPECT_EQ(create(rounded), rounded);
  }
}

TEST(BucketMapTest, RefusesOptionsOutOfBounds) {
  const auto message = [](BucketMap::Options options) {
    const absl::Status status = BucketMap::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.element_count = 0, .bucket_bytes = 1, .world_size = 1}), HasSubstr("element_count is 0"));
  EXPECT_THAT(message({.element_count = 1, .bucket_bytes = 0, .world_size = 1}), HasSubstr("bucket_bytes is 0"));
  EXPECT_THAT(message({.element_count = 1, .bucket_bytes = 1, .world_size = 0}), HasSubstr("world_size is 0"));
  EXPECT_THAT(message({.element_count = 1, .bucket_bytes = kBucketBytesMax + 1, .world_size = 1}),
              HasSubstr("--bucket_bytes=1073741825"));
  EXPECT_THAT(message({.element_count = 1, .bucket_bytes = 1, .world_size = kWorldSizeMax + 1}),
              HasSubstr("world_size is 1025"));
  EXPECT_THAT(message({.element_count = kElementCountMax + 1, .bucket_bytes = kBucketBytesMax, .world_size = 1}),
              HasSubstr("element_count is 68719476737"));
  EXPECT_THAT(message({.element_count = int64_t{1} << 34, .bucket_bytes = 1, .world_size = 1}),
              HasSubstr("--bucket_bytes=1 cuts"));
  const int64_t most = int64_t{65'536} * ReductionBlockElements(1);
  EXPECT_TRUE(BucketMap::Create({.element_count = most, .bucket_bytes = 1, .world_size = 1}).ok());
  EXPECT_THAT(message({.element_count = most + 1, .bucket_bytes = 1, .world_size = 1}), HasSubstr("in 65537 buckets"));
}

}  // namespace
}  // namespace starring
