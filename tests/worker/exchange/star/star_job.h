// A small job, its gradients, and the parameters that one shard computes from them without a network.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_JOB_H_
#define STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_JOB_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bench/exchange_job.h"
#include "common/base/check.h"
#include "common/job/job_spec.h"
#include "server/shard/contribution_sum.h"

namespace starring {

inline JobSpec MakeJob(int rank, int world_size, int64_t elements, int64_t bucket_bytes) {
  JobSpec job = MakeExchangeJob({.rank = rank,
                                 .world_size = world_size,
                                 .element_count = elements,
                                 .bucket_bytes = bucket_bytes,
                                 .has_servers = true,
                                 .optimizer = {.momentum = 0.9f}});
  job.schedule.base = 0.125;
  job.join_deadline = absl::Seconds(20);
  job.exchange_deadline = absl::Seconds(20);
  return job;
}

// Gradients that are small integers: every order of summation gives the same sum.
inline float GradientAt(int rank, int64_t step, int64_t element) {
  return static_cast<float>((element * 7 + step * 13 + rank * 29) % 17 - 8);
}

// Any floats, for comparing bits.
inline float RoughGradientAt(int rank, int64_t step, int64_t element) {
  return GradientAt(rank, step, element) / 3.0f + 1e-3f * static_cast<float>(element % 101);
}

inline std::vector<float> InitialParameters(int64_t count) {
  std::vector<float> parameters(count);
  for (int64_t i = 0; i < count; ++i) parameters[i] = static_cast<float>(i % 23) / 16.0f;
  return parameters;
}

using GradientFunction = float (*)(int rank, int64_t step, int64_t element);

// The same run by one shard that owns everything, without a network.
inline std::vector<float> ReferenceRun(const JobSpec& job, int64_t steps, GradientFunction gradient) {
  OwnedSlices::Options options{.element_count = job.layout.element_count(),
                               .first_step = job.first_step,
                               .optimizer = job.optimizer,
                               .schedule = job.schedule};
  for (int b = 0; b < job.buckets.bucket_count(); ++b) options.slices.push_back({job.buckets.bucket(b)});
  auto sums = ContributionSum::Create(std::move(options), {.order = job.sum_order, .world_size = job.world_size});
  CHECK_OK(sums);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  const auto bytes = [](const std::vector<float>& values, ElementRange range) {
    return std::as_bytes(std::span<const float>(values).subspan(range.begin, range.size()));
  };
  for (int b = 0; b < job.buckets.bucket_count(); ++b) {
    const std::span<const std::byte> piece = bytes(parameters, job.buckets.bucket(b));
    CHECK_OK(sums->SetParameters(b, {&piece, 1}));
  }
  for (int64_t step = job.first_step; step < job.first_step + steps; ++step) {
    for (int rank = 0; rank < job.world_size; ++rank) {
      auto values = std::make_shared<std::vector<float>>(parameters.size());
      for (size_t i = 0; i < values->size(); ++i) (*values)[i] = gradient(rank, step, static_cast<int64_t>(i));
      for (int b = 0; b < job.buckets.bucket_count(); ++b) {
        CHECK_OK(sums->Contribute({.from = {rank, 0},
                                   .step = step,
                                   .bucket = b,
                                   .pieces = {bytes(*values, job.buckets.bucket(b))},
                                   .keeper = values},
                                  {}));
      }
    }
  }
  for (int b = 0; b < job.buckets.bucket_count(); ++b) {
    const auto sealed = sums->Parameters(b);
    std::copy(sealed->parameters().begin(), sealed->parameters().end(),
              parameters.begin() + job.buckets.bucket(b).begin);
  }
  return parameters;
}

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_JOB_H_
