// Servers and workers of a star inside one test process.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_FIXTURE_H_
#define STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "server/parameter_server.h"
#include "tests/worker/exchange/star/star_job.h"
#include "worker/exchange/star/star_exchange.h"

namespace starring {

class Servers {
 public:
  explicit Servers(int count, absl::Duration join_deadline = absl::Seconds(60)) {
    for (int shard = 0; shard < count; ++shard) {
      auto server = ParameterServer::Start({.listen = "127.0.0.1:0",
                                            .shard = shard,
                                            .shard_count = count,
                                            .join_deadline = join_deadline,
                                            .log = nullptr});
      CHECK_OK(server);
      addresses.push_back((*server)->address());
      servers.push_back(*std::move(server));
    }
  }

  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<ParameterServer>> servers;
};

// Runs `worker(rank)` in a thread for each rank and waits.
inline void RunWorkers(int world_size, const std::function<void(int rank)>& worker) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back([&, rank] { worker(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline std::unique_ptr<GradientExchange> MakeStar(const std::vector<std::string>& addresses, int lanes = 2,
                                                  SameHost same_host = SameHost::kSharedMemory) {
  auto exchange = CreateStarExchange({.addresses = addresses, .lanes = lanes, .run_id = "", .same_host = same_host});
  CHECK_OK(exchange);
  return *std::move(exchange);
}

// The current parameters of a worker that passed `given` to Start.
inline std::vector<float> ParametersOf(const GradientExchange& exchange, const std::vector<float>& given) {
  const std::span<const float> shared = exchange.memory().parameters;
  return shared.empty() ? given : std::vector<float>(shared.begin(), shared.end());
}

// One worker's part of a training run: submits all buckets, awaits them in the order of a forward pass.
inline absl::Status TrainSteps(GradientExchange* exchange, const JobSpec& job, int64_t steps,
                               GradientFunction gradient) {
  std::vector<float> own(job.layout.element_count());
  const std::vector<std::span<float>>& memories = exchange->memory().gradients;
  const std::span<float> values = memories.empty() ? std::span(own) : memories.back();
  for (int64_t step = job.first_step; step < job.first_step + steps; ++step) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(job.rank, step, static_cast<int64_t>(i));
    for (int b = 0; b < job.buckets.bucket_count(); ++b) {
      const ElementRange range = job.buckets.bucket(b);
      exchange->Submit({.round = step, .bucket = b, .gradient = values.subspan(range.begin, range.size())});
    }
    for (int b = job.buckets.bucket_count() - 1; b >= 0; --b) {
      if (absl::Status status = exchange->Await(step, b); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_STAR_STAR_FIXTURE_H_
