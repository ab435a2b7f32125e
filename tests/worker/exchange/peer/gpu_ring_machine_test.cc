// Ranks as threads, each with a machine over one board, and with hops on arrays of the host that a thread of each rank
// makes, as a GPU would: the bits are those of the job's reference, and no rank writes what another one still reads.
#include "worker/exchange/peer/gpu_ring_machine.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/job/owned_slices.h"
#include "common/reduce/owner_map.h"
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

HostBoard::Options BoardOptions(const ExampleJob& job, int rank) {
  const int buckets = GpuRingMachine::BoardBuckets(job.Buckets().bucket_count(), job.world_size);
  return {.rank = rank, .world_size = job.world_size, .bucket_count = buckets};
}

// The memory that all ranks map.
struct Shared {
  explicit Shared(const ExampleJob& job)
      : buckets(job.Buckets()),
        network(job.world_size, job.seed),
        board((HostBoard::Bytes(BoardOptions(job, 0)) + 63) / 64),
        gradients(job.world_size, std::vector<float>(job.element_count)),
        parameters(job.world_size, job.InitialParameters()) {}
  const BucketMap buckets;
  InMemoryNetwork network;
  std::vector<Line> board;
  std::vector<std::vector<float>> gradients;   // by rank
  std::vector<std::vector<float>> parameters;  // by rank
};

class HostHops final : public RingHops {
 public:
  HostHops(const ExampleJob& job, int rank, Shared& shared, HostBoard* board)
      : left_((rank + job.world_size - 1) % job.world_size), rank_(rank), shared_(shared), board_(*board) {
    const OwnerMap owners = OwnerMap::SplitChunks(job.world_size);
    for (int b = 0; b < shared.buckets.bucket_count(); ++b) {
      slices_.push_back(owners.SliceOf(shared.buckets.sum(b), rank));
    }
    LearningRateSchedule schedule;
    schedule.base = 0.125;  // the reference's
    auto owned = OwnedSlices::Create({.slices = slices_,
                                      .element_count = job.element_count,
                                      .first_step = 0,
                                      .optimizer = job.optimizer,
                                      .schedule = schedule});
    CHECK_OK(owned);
    owner_ = std::make_unique<HostSliceOwner>(*std::move(owned));
    thread_ = std::thread([this] { Work(); });
  }
  ~HostHops() {
    Begin(nullptr);
    thread_.join();
  }
  // Before each copy from the left neighbour, which could write there meanwhile.
  void set_delay(std::chrono::milliseconds delay) { delay_ = delay; }

  int64_t BeginAdd(int bucket, int chunk, From from) override {
    return Begin([this, bucket, chunk, from] {
      const std::vector<float>& gradient = shared_.gradients[rank_];
      for (const ElementRange& range : Chunk(bucket, chunk)) {
        for (int64_t e = range.begin; e < range.end; ++e) shared_.parameters[rank_][e] = Left(from)[e] + gradient[e];
      }
    });
  }
  int64_t BeginUpdate(int64_t step, int bucket, From from) override {
    return Begin([this, step, bucket, from] {
      for (const ElementRange& range : slices_[bucket]) {
        owner_->Apply({.step = step,
                       .bucket = bucket,
                       .range = range,
                       .sum = Part(Left(from), range),
                       .last = Part(shared_.gradients[rank_], range),
                       .parameters = std::span(shared_.parameters[rank_]).subspan(range.begin, range.size())});
      }
    });
  }
  int64_t BeginCopy(int bucket, int chunk) override {
    return Begin([this, bucket, chunk] {
      std::this_thread::sleep_for(delay_);
      for (const ElementRange& range : Chunk(bucket, chunk)) {
        for (int64_t e = range.begin; e < range.end; ++e) {
          shared_.parameters[rank_][e] = shared_.parameters[left_][e];
        }
      }
    });
  }
  const std::atomic<int64_t>& hops_finished() const override { return finished_; }

 private:
  std::vector<ElementRange> Chunk(int bucket, int chunk) const {
    return OwnerMap::SplitChunks(std::ssize(shared_.parameters)).SliceOf(shared_.buckets.sum(bucket), chunk);
  }
  const std::vector<float>& Left(From from) const {
    return from == From::kGradient ? shared_.gradients[left_] : shared_.parameters[left_];
  }
  static std::span<const float> Part(const std::vector<float>& whole, ElementRange range) {
    return std::span(whole).subspan(range.begin, range.size());
  }
  int64_t Begin(std::function<void()> work) {
    const MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.NotifyOne();
    return ++begun_;
  }
  void Work() {
    while (true) {
      std::function<void()> next;
      {
        const MutexLock lock(mutex_);
        changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !work_.empty(); });
        next = std::move(work_.front());
        work_.pop_front();
      }
      if (next == nullptr) return;
      next();
      finished_.fetch_add(1);
      board_.Ring(rank_);
    }
  }

  const int left_, rank_;
  Shared& shared_;
  HostBoard& board_;
  std::vector<std::vector<ElementRange>> slices_;
  std::unique_ptr<SliceOwner> owner_;
  std::chrono::milliseconds delay_{0};
  std::atomic<int64_t> finished_ = 0;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

class Rank {
 public:
  Rank(const ExampleJob& job, int rank, Shared& shared)
      : buckets_(shared.buckets),
        gradient_(shared.gradients[rank]),
        board_(std::as_writable_bytes(std::span(shared.board)), BoardOptions(job, rank)),
        transport_(shared.network.CreateTransport(rank)),
        hops_(job, rank, shared, &board_) {
    transport_.Attach(&board_);
    machine_ = std::make_unique<GpuRingMachine>(GpuRingMachine::Options{
        .buckets = &buckets_, .hops = &hops_, .own_gradient = gradient_, .board = &board_, .transport = &transport_});
  }

  void Submit(int64_t step, const std::vector<float>& gradient) {
    gradient_.assign(gradient.begin(), gradient.end());
    for (int b = 0; b < buckets_.bucket_count(); ++b) {
      const ElementRange range = buckets_.bucket(b);
      machine_->Submit(step, b, std::span<const float>(gradient_).subspan(range.begin, range.size()));
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
  GpuRingMachine& machine() { return *machine_; }
  HostHops& hops() { return hops_; }

 private:
  const BucketMap& buckets_;
  std::vector<float>& gradient_;
  HostBoard board_;
  HostTransport transport_;
  HostHops hops_;
  std::unique_ptr<GpuRingMachine> machine_;
};

// Runs `work` for every rank on a thread of its own.
void RunRanks(const ExampleJob& job, Shared& shared, const std::function<void(int rank, Rank& it)>& work) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < job.world_size; ++rank) ranks.push_back(std::make_unique<Rank>(job, rank, shared));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.world_size; ++rank) threads.emplace_back([&, rank] { work(rank, *ranks[rank]); });
  for (std::thread& thread : threads) thread.join();
}

class GpuRingMachineRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, GpuRingMachineRanks, testing::Values(2, 3, 4, 8));

// From a vector in which some ranks own nothing to several buckets of which the last is short. One rank copies late:
// its left neighbour has long submitted the next step, and must not write there yet.
TEST_P(GpuRingMachineRanks, GiveTheReferencesBits) {
  constexpr int kSteps = 3;
  const int world_size = GetParam();
  for (const int64_t element_count : {int64_t{3}, int64_t{5003}, 9 * ReductionBlockElements(world_size) / 8 + 13}) {
    SCOPED_TRACE(testing::Message() << element_count << " elements");
    const ExampleJob job = {.element_count = element_count, .bucket_bytes = 1, .world_size = world_size};
    std::vector<std::vector<float>> expected;
    for (int step = 0; step < kSteps; ++step) expected.push_back(job.Reference(step + 1));
    Shared shared(job);
    std::vector<int> equal(world_size);
    RunRanks(job, shared, [&](int rank, Rank& it) {
      if (rank == 1) it.hops().set_delay(std::chrono::milliseconds(3));
      for (int step = 0; step < kSteps; ++step) {
        it.Submit(step, job.Gradient(rank, step));
        it.AwaitAll();
        equal[rank] += static_cast<int>(shared.parameters[rank] == expected[step]);
      }
    });
    EXPECT_EQ(equal, std::vector<int>(world_size, kSteps));
  }
}

TEST(GpuRingMachine, WaitsForTheLeftNeighbourAndCountsBytes) {
  const ExampleJob job = {.element_count = 30'000, .bucket_bytes = 1, .world_size = 3};
  Shared shared(job);
  Rank zero(job, 0, shared), one(job, 1, shared), two(job, 2, shared);
  zero.Submit(0, job.Gradient(0, 0));
  one.Submit(0, job.Gradient(1, 0));
  const auto poll = [&] {
    for (int i = 0; i < 20; ++i) {
      zero.Poll();
      one.Poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  poll();
  EXPECT_FALSE(zero.machine().IsReady(0));
  EXPECT_FALSE(one.machine().IsReady(0));
  EXPECT_EQ(one.machine().Oldest().bucket, 0);
  EXPECT_EQ(shared.parameters[0], job.InitialParameters());  // rank 2 has no gradient for it
  EXPECT_NE(shared.parameters[1], job.InitialParameters());  // a partial sum
  two.Submit(0, job.Gradient(2, 0));
  while (!zero.machine().IsIdle() || !one.machine().IsIdle() || !two.machine().IsIdle()) {
    zero.Poll();
    one.Poll();
    two.Poll();
  }
  EXPECT_EQ(shared.parameters, std::vector<std::vector<float>>(3, job.Reference(1)));
  const ExchangeCounters counters = two.machine().counters();
  EXPECT_TRUE(counters.shared_memory);
  EXPECT_NEAR(static_cast<double>(counters.bytes_received), 4 * 30'000 * 4.0 / 3, 32);
  EXPECT_NEAR(static_cast<double>(counters.bytes_sent), 4 * 30'000 * 4.0 / 3, 32);
}

}  // namespace
}  // namespace starring
