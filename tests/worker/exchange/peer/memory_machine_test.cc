// Ranks as threads, each with a machine over one board and shared arrays: the bits are those of the job's reference,
// for both orders, and no rank writes what another one still reads.
#include "worker/exchange/peer/memory_machine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/job/owned_slices.h"
#include "common/transport/memory/host_board.h"
#include "common/transport/memory/host_transport.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/slice_owner.h"

namespace starring {
namespace {

struct alignas(64) Line {
  std::byte bytes[64] = {};
};

// The memory that all ranks map.
struct Shared {
  explicit Shared(const ExampleJob& job)
      : buckets(job.Buckets()),
        network(job.world_size, job.seed),
        board((HostBoard::Bytes({.world_size = job.world_size, .bucket_count = buckets.bucket_count()}) + 63) / 64),
        gradients(job.world_size, std::vector<float>(job.element_count)),
        parameters(job.InitialParameters()) {}
  const BucketMap buckets;
  InMemoryNetwork network;
  std::vector<Line> board;
  std::vector<std::vector<float>> gradients;
  std::vector<float> parameters;
};

class Rank {
 public:
  Rank(const ExampleJob& job, int rank, Shared& shared, int update_threads = 1)
      : buckets_(shared.buckets),
        board_(std::as_writable_bytes(std::span(shared.board)),
               {.rank = rank, .world_size = job.world_size, .bucket_count = buckets_.bucket_count()}),
        transport_(shared.network.CreateTransport(rank)) {
    std::vector<std::vector<ElementRange>> slices;
    const OwnerMap owners = OwnerMap::Ranges(buckets_.world_size());
    for (int b = 0; b < buckets_.bucket_count(); ++b) slices.push_back(owners.SliceOf(buckets_.sum(b), rank));
    LearningRateSchedule schedule;
    schedule.base = 0.125;  // the reference's
    auto owned = OwnedSlices::Create({.slices = std::move(slices),
                                      .element_count = job.element_count,
                                      .first_step = 0,
                                      .optimizer = job.optimizer,
                                      .schedule = schedule});
    CHECK_OK(owned);
    owner_ = std::make_unique<HostSliceOwner>(*std::move(owned));
    transport_.Attach(&board_);
    HostArrays arrays{.gradients = {}, .own_gradients = {shared.gradients[rank]}, .parameters = shared.parameters};
    for (const std::vector<float>& gradient : shared.gradients) arrays.gradients.emplace_back(gradient);
    machine_ = std::make_unique<MemoryMachine>(MemoryMachine::Options{.buckets = &buckets_,
                                                                      .owner = owner_.get(),
                                                                      .arrays = std::move(arrays),
                                                                      .board = &board_,
                                                                      .transport = &transport_,
                                                                      .sum_order = job.sum_order,
                                                                      .update_threads = update_threads});
  }

  void Submit(int64_t step, std::span<const float> gradient) {
    for (int b = 0; b < buckets_.bucket_count(); ++b) {
      const ElementRange range = buckets_.bucket(b);
      machine_->Submit(step, b, gradient.subspan(range.begin, range.size()));
    }
  }
  void Poll() {
    std::vector<Transport::Token> completed;
    CHECK_OK(transport_.Poll(completed));
    for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
  }
  void AwaitAll() {
    while (!machine_->IsIdle()) {
      Poll();
      if (!machine_->IsIdle()) transport_.Wait(std::chrono::milliseconds(50));
    }
  }
  MemoryMachine& machine() { return *machine_; }

 private:
  const BucketMap& buckets_;
  HostBoard board_;
  HostTransport transport_;
  std::unique_ptr<SliceOwner> owner_;
  std::unique_ptr<MemoryMachine> machine_;
};

// Runs `work` for every rank on a thread of its own.
void RunRanks(const ExampleJob& job, Shared& shared, const std::function<void(int rank, Rank& it)>& work,
              int update_threads = 1) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < job.world_size; ++rank) {
    ranks.push_back(std::make_unique<Rank>(job, rank, shared, update_threads));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.world_size; ++rank) threads.emplace_back([&, rank] { work(rank, *ranks[rank]); });
  for (std::thread& thread : threads) thread.join();
}

using RanksAndOrder = std::tuple<int, SumOrder>;

class MemoryMachineRanks : public testing::TestWithParam<RanksAndOrder> {
 protected:
  ExampleJob Job(int64_t element_count) const {
    const auto& [world_size, order] = GetParam();
    return {.element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .sum_order = order};
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryMachineRanks,
                         testing::Combine(testing::Values(2, 3, 8),
                                          testing::Values(SumOrder::kChain, SumOrder::kTree)));

// From a vector that one rank owns, by tails that are no whole line, to several buckets of which the last is short.
// Every rank sees each step's parameters when it may read them, and not a part of the next step's.
TEST_P(MemoryMachineRanks, GivesTheReferencesBits) {
  constexpr int kSteps = 2;
  const int world_size = std::get<0>(GetParam());
  for (const int64_t element_count :
       {int64_t{3}, int64_t{5000}, int64_t{20'011}, 9 * ReductionBlockElements(world_size) / 8 + 13}) {
    SCOPED_TRACE(testing::Message() << element_count << " elements");
    const ExampleJob job = Job(element_count);
    std::vector<std::vector<float>> expected;
    for (int step = 0; step < kSteps; ++step) expected.push_back(job.Reference(step + 1));
    Shared shared(job);
    std::vector<int> equal(world_size);
    RunRanks(job, shared, [&](int rank, Rank& it) {
      for (int step = 0; step < kSteps; ++step) {
        if (rank % 2 == 0) {
          // As a trainer that writes its gradient where the exchange likes it.
          std::ranges::copy(job.Gradient(rank, step), shared.gradients[rank].begin());
          it.Submit(step, shared.gradients[rank]);
        } else {
          it.Submit(step, job.Gradient(rank, step));
        }
        it.AwaitAll();
        // A slow reader: the others have long submitted their next step, and must wait for this rank.
        if (rank == world_size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        equal[rank] += static_cast<int>(shared.parameters == expected[step]);
      }
    });
    EXPECT_EQ(equal, std::vector<int>(world_size, kSteps));
  }
}

// Pieces of 32,768 elements by three threads: the slice ends inside one of them, and steps follow each other.
TEST(MemoryMachine, SeveralThreadsGiveTheReferencesBits) {
#ifdef STARRING_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not see the barriers of GCC's OpenMP";
#endif
  for (const int world_size : {2, 3}) {
    const ExampleJob job = {.element_count = 400'007, .bucket_bytes = 1 << 20, .world_size = world_size};
    Shared shared(job);
    RunRanks(
        job, shared,
        [&](int rank, Rank& it) {
          for (int step = 0; step < 3; ++step) {
            it.Submit(step, job.Gradient(rank, step));
            it.AwaitAll();
          }
        },
        3);
    EXPECT_EQ(shared.parameters, job.Reference(3)) << world_size << " ranks";
  }
}

// A bucket is ready for a rank only when all ranks have submitted it, and all owners have updated it.
TEST(MemoryMachine, WaitsForTheLastRankAndForTheOwners) {
  const ExampleJob job = {.element_count = 40'000, .bucket_bytes = 1, .world_size = 3};
  Shared shared(job);
  Rank zero(job, 0, shared), one(job, 1, shared), two(job, 2, shared);
  zero.Submit(0, job.Gradient(0, 0));
  two.Submit(0, job.Gradient(2, 0));
  const auto poll = [&] {
    for (int i = 0; i < 10; ++i) {
      zero.Poll();
      two.Poll();
    }
  };
  poll();
  EXPECT_EQ(shared.parameters, job.InitialParameters());
  EXPECT_FALSE(zero.machine().IsReady(0));
  EXPECT_EQ(zero.machine().Oldest().bucket, 0);
  one.Submit(0, job.Gradient(1, 0));
  poll();
  EXPECT_FALSE(zero.machine().IsReady(0));  // rank 1 has not polled, and owns a slice
  one.AwaitAll();
  zero.AwaitAll();
  two.AwaitAll();
  EXPECT_TRUE(zero.machine().IsReady(0));
  EXPECT_EQ(shared.parameters, job.Reference(1));
  const ExchangeCounters counters = zero.machine().counters();
  EXPECT_TRUE(counters.shared_memory);
  EXPECT_NEAR(static_cast<double>(counters.bytes_sent), 4 * 40'000 * 4.0 / 3, 256);
}

// An owner goes back to its transport after each piece, so that a message or a Submit does not wait for a whole slice.
TEST(MemoryMachine, UpdatesInPieces) {
  const ExampleJob job = {.element_count = 400'000, .bucket_bytes = 1 << 24, .world_size = 2};
  Shared shared(job);
  Rank zero(job, 0, shared), one(job, 1, shared);
  zero.Submit(0, job.Gradient(0, 0));
  one.Submit(0, job.Gradient(1, 0));
  const std::vector<float> before = job.InitialParameters(), after = job.Reference(1);
  const int64_t begin = OwnerMap::Ranges(shared.buckets.world_size()).RangeOf(shared.buckets.sum(0), 0).begin;
  for (int64_t piece = 0; piece < 3; ++piece) {
    zero.Poll();
    EXPECT_EQ(shared.parameters[begin + piece * 32768 + 32767], after[begin + piece * 32768 + 32767]) << piece;
    EXPECT_EQ(shared.parameters[begin + piece * 32768 + 32768], before[begin + piece * 32768 + 32768]) << piece;
  }
}

}  // namespace
}  // namespace starring
