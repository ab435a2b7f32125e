// Many threads on one shard, as a server's lanes call it: contributions come twice, late and out of order.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/parameter_shard.h"
#include "gtest/gtest.h"
#include "tests/common/arithmetic/wild_numbers.h"

namespace starring {
namespace {

constexpr int kWorldSize = 3, kBucketCount = 5, kSteps = 40;
constexpr int64_t kBucketElements = 3000;  // more than one block of the sum

std::unique_ptr<ParameterShard> MakeShard() {
  ParameterShard::Options options = {.element_count = kBucketCount * kBucketElements,
                                     .world_size = kWorldSize,
                                     .optimizer = {},
                                     .schedule = {.base = 1}};
  for (int b = kBucketCount - 1; b >= 0; --b)
    options.slices.push_back({{b * kBucketElements, (b + 1) * kBucketElements}});
  auto shard = ParameterShard::Create(std::move(options)).value();
  const std::vector<float> zeros(kBucketElements);
  const std::span<const std::byte> piece = std::as_bytes(std::span(zeros));
  for (int b = 0; b < kBucketCount; ++b) EXPECT_TRUE(shard->SetParameters(b, {&piece, 1}).ok());
  return shard;
}

// Small integers: their sums are exact in float32 in any order.
float GradientOf(int worker, int64_t step, int bucket, int64_t e) {
  return static_cast<float>((worker * 5 + step * 3 + bucket * 7 + e) % 17 - 8);
}

// Plain SGD with rate 1.
float ParameterAfter(int64_t step, int bucket, int64_t e) {
  float sum = 0;
  for (int64_t t = 0; t <= step; ++t) {
    for (int worker = 0; worker < kWorldSize; ++worker) sum += GradientOf(worker, t, bucket, e);
  }
  return -sum;
}

Contribution Make(int worker, int64_t step, int bucket, std::mt19937& random) {
  std::vector<float> gradient(kBucketElements);
  for (int64_t e = 0; e < kBucketElements; ++e) gradient[e] = GradientOf(worker, step, bucket, e);
  const auto message = std::make_shared<CutMessage>(gradient, std::vector<size_t>{1 + random() % 9000}, random() % 4);
  return {.worker = worker, .step = step, .bucket = bucket, .pieces = message->pieces(), .keeper = message};
}

// What a server does with the fates: whoever seals wakes those who wait.
class Announcer {
 public:
  void Announce() {
    std::lock_guard lock(mutex_);
    ++announcement_count_;
    changed_.notify_all();
  }
  std::shared_ptr<const SealedSlice> WaitFor(const ParameterShard& shard, int64_t step, int bucket) {
    std::unique_lock lock(mutex_);
    std::shared_ptr<const SealedSlice> sealed;
    const bool in_time = changed_.wait_for(lock, std::chrono::seconds(50), [&] {
      sealed = shard.Parameters(bucket);
      return sealed->step() >= step;
    });
    EXPECT_TRUE(in_time) << "step " << step << " of bucket " << bucket << " was never sealed";
    return sealed;
  }
  int64_t announcement_count() const { return announcement_count_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t announcement_count_ = 0;
};

TEST(ParameterShardThreadsTest, RepeatedLateAndShuffledContributionsGiveTheExactSum) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto shard = MakeShard();
  Announcer announcer;
  const auto contribute = [&](Contribution contribution, int64_t step) {
    const absl::StatusOr<ContributeResult> result = shard->Contribute(std::move(contribution));
    ASSERT_TRUE(result.ok()) << result.status();
    if (result->sealed != nullptr) {
      EXPECT_EQ(result->sealed->step(), step);
    }
    if (result->fate == ContributionFate::kSealed) announcer.Announce();
  };
  const auto work = [&](int worker) {
    std::mt19937 random(seed + worker);
    std::vector<int> buckets(kBucketCount);
    for (int b = 0; b < kBucketCount; ++b) buckets[b] = b;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::shuffle(buckets.begin(), buckets.end(), random);
      for (const int b : buckets) {
        contribute(Make(worker, step, b, random), step);
        if (random() % 2 == 0) contribute(Make(worker, step, b, random), step);
      }
      std::shuffle(buckets.begin(), buckets.end(), random);
      for (const int b : buckets) {
        const auto sealed = announcer.WaitFor(*shard, step, b);
        ASSERT_EQ(sealed->step(), step) << "nobody can be a step ahead of this worker";
        for (int64_t e = worker; e < kBucketElements; e += 97) {
          ASSERT_EQ(sealed->parameters()[e], ParameterAfter(step, b, e)) << "bucket " << b << ", element " << e;
        }
        if (random() % 2 == 0) contribute(Make(worker, step, b, random), step);  // as after a broken connection
      }
    }
  };
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kWorldSize; ++worker) threads.emplace_back(work, worker);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(announcer.announcement_count(), int64_t{kSteps} * kBucketCount) << "every step is sealed by one call";
  for (int b = 0; b < kBucketCount; ++b) {
    for (int64_t e = 0; e < kBucketElements; ++e) {
      ASSERT_EQ(shard->Parameters(b)->parameters()[e], ParameterAfter(kSteps - 1, b, e));
    }
  }
}

// Two threads carry the same contribution at the same time: it counts once.
TEST(ParameterShardThreadsTest, TwinsCountOnce) {
  const auto shard = MakeShard();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::thread> threads;
    std::mutex mutex;
    int sealed_count = 0, pending_count = 0;
    for (int i = 0; i < 2 * kWorldSize; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(i);
        const auto result = shard->Contribute(Make(i / 2, step, 0, random));
        ASSERT_TRUE(result.ok()) << result.status();
        std::lock_guard lock(mutex);
        sealed_count += result->fate == ContributionFate::kSealed;
        pending_count += result->fate == ContributionFate::kPending;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sealed_count, 1);
    EXPECT_EQ(pending_count, kWorldSize - 1);
    for (int64_t e = 0; e < kBucketElements; e += 13) {
      ASSERT_EQ(shard->Parameters(0)->parameters()[e], ParameterAfter(step, 0, e));
    }
  }
}

// Readers that are two steps behind: what they hold stays.
TEST(ParameterShardThreadsTest, ASlowReaderSeesOneStepOnly) {
  const auto shard = MakeShard();
  Announcer announcer;
  const auto read = [&] {
    for (int64_t step = 0; step + 2 < kSteps;) {
      const std::shared_ptr<const SealedSlice> held = announcer.WaitFor(*shard, step, 0);
      const int64_t held_step = held->step();
      step = held_step + 2;
      if (step < kSteps) announcer.WaitFor(*shard, step, 0);
      ASSERT_EQ(held->step(), held_step);
      for (int64_t e = 0; e < kBucketElements; e += 11) {
        ASSERT_EQ(held->parameters()[e], ParameterAfter(held_step, 0, e)) << "step " << held_step;
      }
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read);
  std::mt19937 random(1);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int worker = 0; worker < kWorldSize; ++worker) {
      ASSERT_TRUE(shard->Contribute(Make(worker, step, 0, random)).ok());
    }
    announcer.Announce();
  }
  for (std::thread& reader : readers) reader.join();
}

// For ThreadSanitizer: a reader lets go and does nothing else, no lock and no join, that would order its last read
// before the shard's next write to that memory. The shard's own look at the reference count must.
TEST(ParameterShardThreadsTest, MemoryIsWrittenAgainOnlyBehindTheLastRead) {
  const auto shard = MakeShard();
  std::shared_ptr<const SealedSlice> initial = shard->Parameters(0);
  const float* const memory = initial->parameters().data();
  std::thread reader([held = std::move(initial)]() mutable {
    float sum = 0;
    for (const float value : held->parameters()) sum += value;
    EXPECT_EQ(sum, 0) << "written to under the reader";
    held.reset();
  });
  std::mt19937 random(1);
  bool written_again = false;
  const absl::Time deadline = absl::Now() + absl::Seconds(50);
  for (int64_t step = 0; !written_again && absl::Now() < deadline; ++step) {
    for (int worker = 0; worker < kWorldSize; ++worker) {
      ASSERT_TRUE(shard->Contribute(Make(worker, step, 0, random)).ok());
    }
    written_again = shard->Parameters(0)->parameters().data() == memory;
  }
  EXPECT_TRUE(written_again);
  reader.join();
}

}  // namespace
}  // namespace starring
