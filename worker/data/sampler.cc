#include "worker/data/sampler.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace starring {

Sampler::Sampler(const Options& options) : options_(options) {
  CHECK_GE(options.sample_count, 1);
  CHECK_LE(options.sample_count, std::numeric_limits<uint32_t>::max());  // a shuffle draws 32 bits
  CHECK_GE(options.global_batch, 1);
  CHECK_GE(options.rank, 0);
  CHECK_LT(options.rank, options.world_size);
}

// The last batch of an epoch may be smaller: no sample is left out.
int64_t Sampler::steps_per_epoch() const { return (options_.sample_count - 1) / options_.global_batch + 1; }

std::vector<int64_t> Sampler::ShareSizes() const {
  std::set<int64_t, std::greater<>> sizes;
  // A batch is full, or it is the last of an epoch. The shares of each differ by one at most.
  const int64_t count = options_.sample_count, ranks = options_.world_size;
  for (const int64_t batch : {std::min(count, options_.global_batch), count % options_.global_batch}) {
    sizes.insert({(batch + ranks - 1) / ranks, batch / ranks});
  }
  // A rank without a sample runs no operation, so the size 0 needs no plan.
  sizes.erase(0);
  return {sizes.begin(), sizes.end()};
}

BatchPlan Sampler::Plan(int64_t step, int rank) {
  CHECK_GE(step, 0);
  CHECK(0 <= rank && rank < options_.world_size) << rank;
  BatchPlan plan;
  plan.step = step;
  plan.epoch = step / steps_per_epoch();
  const int64_t batch_begin = step % steps_per_epoch() * options_.global_batch;
  plan.global_count = std::min(options_.global_batch, options_.sample_count - batch_begin);
  // This cut gives shares that differ by one at most, and covers every sample once, for any number of ranks.
  plan.first_sample = plan.global_count * rank / options_.world_size;
  const int64_t local_end = plan.global_count * (rank + 1) / options_.world_size;
  plan.samples.resize(static_cast<size_t>(local_end - plan.first_sample));
  const int64_t first = batch_begin + plan.first_sample;
  if (options_.order == Order::kSequential) {
    std::iota(plan.samples.begin(), plan.samples.end(), first);
    return plan;
  }
  // The permutation is kept for the epoch: a shuffle of millions of samples takes longer than a small step.
  if (plan.epoch != epoch_) {
    permutation_ = Permutation(options_.sample_count, options_.seed, plan.epoch);
    epoch_ = plan.epoch;
  }
  std::copy_n(permutation_.begin() + first, plan.samples.size(), plan.samples.begin());
  return plan;
}

std::vector<int64_t> Sampler::Permutation(int64_t sample_count, uint64_t seed, int64_t epoch) {
  // The rank is not in the key: all ranks draw one order and take their parts of it.
  return RandomOrder(sample_count,
                     {.seed = seed, .purpose = RandomPurpose::kShuffle, .epoch = static_cast<uint32_t>(epoch)});
}

// Fisher and Yates's shuffle, from the end: position i takes one of the i + 1 samples that are left. O(count).
std::vector<int64_t> RandomOrder(int64_t count, const RandomKey& key) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Philox makes four words at a time; each block serves the positions 4 * block to 4 * block + 3.
  PhiloxWords words{};
  for (int64_t i = count - 1, block = -1; i >= 1; --i) {
    if (i / 4 != block) {
      block = i / 4;
      words = key.At(static_cast<uint64_t>(block));
    }
    const uint32_t j = BelowN(words[static_cast<size_t>(i % 4)], static_cast<uint32_t>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[j]);
  }
  return order;
}

}  // namespace starring
