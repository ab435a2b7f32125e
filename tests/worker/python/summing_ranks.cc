#include "tests/worker/python/summing_ranks.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <utility>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/reduce/ring_memory.h"

namespace starring {
namespace {

constexpr int kRoundsMax = 200'000;

float TreeSum(const std::vector<float>& terms, LeafRange ranks) {
  if (ranks.end - ranks.begin == 1) return terms[ranks.begin];
  const int middle = TreeMiddle(ranks);
  const float left = TreeSum(terms, {ranks.begin, middle});
  const float right = TreeSum(terms, {middle, ranks.end});
  return left + right;
}

float ChainSum(const std::vector<float>& terms, int first) {
  float sum = terms[first];
  for (size_t i = 1; i < terms.size(); ++i) sum += terms[(first + i) % terms.size()];
  return sum;
}

}  // namespace

std::vector<std::byte> WildElements(const ReductionHead& head, int rank, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + rank);
  std::vector<float> values(head.count);
  for (float& value : values) {
    const float size = static_cast<float>(random() % 100'000) * 1e-5f + 0.5f;
    value = std::ldexp(random() % 2 == 0 ? size : -size, static_cast<int>(random() % 12) - 6);
  }
  std::vector<std::byte> elements(head.bytes());
  Finish({.type = head.type}, values, elements.data());
  return elements;
}

std::vector<std::byte> ReferenceSum(Topology topology, const ReductionHead& head,
                                    const std::vector<std::vector<std::byte>>& contributions) {
  const int world_size = static_cast<int>(contributions.size());
  std::vector<std::vector<float>> widened(world_size, std::vector<float>(head.count));
  for (int rank = 0; rank < world_size; ++rank) Widen(head.type, contributions[rank].data(), widened[rank]);
  std::vector<float> sums(head.count);
  std::vector<float> terms(world_size);
  const SumOrder order = topology == Topology::kStar ? SumOrder::kTree : SumOrder::kChain;
  ForEachRun({0, head.count}, head.count, {.order = order, .world_size = world_size},
             [&](ElementRange run, int first_rank) {
               for (int64_t i = run.begin; i < run.end; ++i) {
                 for (int rank = 0; rank < world_size; ++rank) terms[rank] = widened[rank][i];
                 sums[i] = order == SumOrder::kTree ? TreeSum(terms, {0, world_size}) : ChainSum(terms, first_rank);
                 sums[i] /= head.divisor;
               }
             });
  std::vector<std::byte> elements(head.bytes());
  Finish({.type = head.type}, sums, elements.data());
  return elements;
}

SummingRanks::SummingRanks(const Options& options)
    : options_(options),
      network_(options.worker_count + options.server_count, options.seed),
      arrays_(options.worker_count),
      completed_(options.worker_count, 0) {
  for (int rank = 0; rank < options.worker_count + options.server_count; ++rank) {
    transports_.push_back(network_.CreateTransport(rank));
    if (options.topology == Topology::kRing) {
      CreateRingMemory();
    } else {
      memories_.emplace_back(ReduceStarMemoryBytes(options.worker_count) / static_cast<int64_t>(sizeof(float)));
    }
  }
  for (int rank = 0; rank < options.worker_count + options.server_count; ++rank) {
    if (rank >= options.worker_count) {
      servers_.push_back(std::make_unique<SumServer>(StarOptions(rank)));
    } else if (options.topology == Topology::kRing) {
      machines_.push_back(std::make_unique<ReduceRing>(RingOptions(rank)));
    } else {
      machines_.push_back(std::make_unique<ReduceStar>(StarOptions(rank)));
    }
  }
}

void SummingRanks::CreateRingMemory() {
  if (worker_count() == 1) return;
  memories_.emplace_back(RingMemory::BytesNeeded(worker_count()) / static_cast<int64_t>(sizeof(float)));
}

ReduceStarOptions SummingRanks::StarOptions(int rank) {
  ReduceStarOptions star = {.transport = transports_[rank].get(),
                            .server_count = options_.server_count,
                            .memory = std::as_writable_bytes(memories_[rank].span()),
                            .shared = {},
                            .is_shared = is_shared()};
  if (!is_shared() || rank >= worker_count()) return star;
  const int first_owner = options_.server_count > 0 ? worker_count() : 0;
  for (int owner = first_owner; owner < std::ssize(memories_); ++owner) {
    star.shared.push_back(std::as_writable_bytes(memories_[owner].span()));
  }
  return star;
}

ReduceRing::Options SummingRanks::RingOptions(int rank) {
  ReduceRing::Options ring = {.transport = transports_[rank].get(), .own = {}, .right = {}};
  if (is_shared()) {
    ring.own.emplace(std::as_writable_bytes(memories_[rank].span()), worker_count());
    ring.right.emplace(std::as_writable_bytes(memories_[(rank + 1) % worker_count()].span()), worker_count());
  }
  return ring;
}

void SummingRanks::Begin(int rank, const ReductionHead& head, std::vector<std::byte> elements) {
  CHECK_EQ(std::ssize(elements), head.bytes());
  // A vector's elements stay at their place when it is moved.
  arrays_[rank].push_back(std::move(elements));
  machines_[rank]->Begin({.number = std::ssize(arrays_[rank]) - 1, .head = head, .data = arrays_[rank].back().data()});
}

absl::Status SummingRanks::Finish() { return RunUntilIdle(/*with_servers=*/false); }

absl::Status SummingRanks::End() {
  for (int rank = 0; rank < worker_count(); ++rank) {
    machines_[rank]->Begin({.number = std::ssize(arrays_[rank]), .head = {.kind = ReductionHead::Kind::kEnd}});
  }
  return RunUntilIdle(/*with_servers=*/true);
}

absl::Status SummingRanks::status() const {
  for (const auto& machine : machines_) {
    if (!machine->status().ok()) return machine->status();
  }
  for (const auto& server : servers_) {
    if (!server->status().ok()) return server->status();
  }
  return absl::OkStatus();
}

absl::Status SummingRanks::RunUntilIdle(bool with_servers) {
  std::vector<Transport::Token> completed;
  for (int round = 0; round < kRoundsMax; ++round) {
    for (int rank = 0; rank < worker_count(); ++rank) completed_[rank] += std::ssize(machines_[rank]->TakeCompleted());
    const bool ranks_are_idle = std::ranges::all_of(machines_, [](const auto& machine) { return machine->IsIdle(); });
    const bool servers_are_over = std::ranges::all_of(servers_, [](const auto& server) { return server->is_over(); });
    if (ranks_are_idle && (!with_servers || servers_are_over)) return absl::OkStatus();
    for (const auto& transport : transports_) {
      completed.clear();
      CHECK_OK(transport->Poll(completed));
      for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
    }
    if (!status().ok()) return status();
  }
  return absl::DeadlineExceededError("the ranks wait for ever");
}

}  // namespace starring
