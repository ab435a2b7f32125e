#include "common/reduce/arrays/reduction.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/reduce/owner_map.h"

namespace starring {

ElementRange SliceOf(const Reduction& reduction, int owner, int owner_count) {
  // Slices are whole cache lines, so the size of an element decides where they begin.
  return OwnerMap::Ranges(owner_count, ElementBytes(reduction.head.type))
      .RangeOf({.elements = {0, reduction.head.count}, .number = reduction.number}, owner);
}

absl::Status CheckHead(const ReductionHead& head) {
  if (head.step < 0 || head.step > kStepCountMax) {
    return absl::InvalidArgumentError(absl::StrCat("step ", head.step, " is not between 0 and ", kStepCountMax));
  }
  if (head.bucket < 0 || head.bucket >= kBucketCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", head.bucket, " is not between 0 and ", kBucketCountMax - 1));
  }
  if (head.count < 0 || head.count > kElementCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of ", head.count, " elements: at most ", kElementCountMax, " are allowed"));
  }
  // The head may be another process's, whose field can hold any number.
  const auto type = static_cast<int32_t>(head.type);
  if (type < 0 || type >= kElementTypeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("type ", type, " is none of float32 (0), bfloat16 (1) and float16 (2)"));
  }
  if (!std::isfinite(head.divisor) || head.divisor <= 0.0f) {
    return absl::InvalidArgumentError(absl::StrCat("divisor ", head.divisor, " is no positive number"));
  }
  return absl::OkStatus();
}

// The first field that differs is the cause: another step or bucket has other elements, too.
absl::Status CheckSameHead(const RankAndHead& a, const RankAndHead& b) {
  const auto differ = [&](const std::string& of_a, const std::string& of_b, const char* way_out) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", a.rank, " adds ", of_a, ", rank ", b.rank, " adds ", of_b,
                                                   ": all ranks must make the same calls in the same order", way_out));
  };
  const ReductionHead &x = a.head, &y = b.head;
  if (x.step != y.step || x.bucket != y.bucket) return differ(DescribeReduction(x), DescribeReduction(y), "");
  const auto in_bucket = [](const ReductionHead& head, const std::string& what) {
    return absl::StrCat(what, " in ", DescribeReduction(head));
  };
  if (x.type != y.type) {
    return differ(in_bucket(x, ElementTypeName(x.type)), in_bucket(y, ElementTypeName(y.type)), "");
  }
  if (x.count != y.count) {
    return differ(in_bucket(x, absl::StrCat(x.count, " elements")), in_bucket(y, absl::StrCat(y.count, " elements")),
                  ", for the same model");
  }
  if (x.layout != y.layout) {
    return differ(in_bucket(x, absl::StrFormat("layout %016x", x.layout)),
                  in_bucket(y, absl::StrFormat("layout %016x", y.layout)),
                  ", for the same parameters in the same order");
  }
  // HashOf takes the divisor's bits, so equality is that of bits here, too.
  if (std::bit_cast<uint32_t>(x.divisor) != std::bit_cast<uint32_t>(y.divisor)) {
    return differ(in_bucket(x, absl::StrCat("divided by ", x.divisor)),
                  in_bucket(y, absl::StrCat("divided by ", y.divisor)), "");
  }
  return absl::OkStatus();
}

std::string DescribeReduction(const ReductionHead& head) {
  return absl::StrCat("step ", head.step, ", bucket ", head.bucket);
}

uint64_t HashOf(const ReductionHead& head) {
  // The steps of splitmix64, so that heads which differ in one field do not meet in a few numbers.
  uint64_t hash = 0;
  const uint64_t fields[] = {static_cast<uint64_t>(head.bucket), static_cast<uint64_t>(head.step), head.layout,
                             static_cast<uint64_t>(head.count),
                             static_cast<uint64_t>(head.type) << 32 | std::bit_cast<uint32_t>(head.divisor)};
  for (const uint64_t field : fields) {
    hash = (hash ^ field) + 0x9e3779b97f4a7c15;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace starring
