// Rings and co-located stars whose messages are in GPU memory, and some that must fall back to host memory. The GPUs
// are emulated, so any transport can move their memory.
#include <barrier>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/job/bucket_map.h"
#include "common/transport/message_pump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/peer/ring_machine.h"
#include "worker/exchange/peer/star_machine.h"

namespace starring {
namespace {

using MemoryPlace = ExchangeMemory::Place;

struct Outcome {
  absl::Status status;
  MemoryPlace place = MemoryPlace::kHost;
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;  // rank 0
};

using Algorithm = PeerExchange::Algorithm;

struct Training {
  ExampleJob job;
  Algorithm algorithm = Algorithm::kRing;
  int64_t first_step = 0, step_count = 3;
  std::vector<float> start;               // rank 0's parameters; empty: the job's
  std::vector<std::vector<float>> state;  // rank 0's optimizer state; empty: zeros
  absl::Duration join_deadline = absl::Seconds(60);
  bool without_claim = false;
  std::barrier<>* allocated = nullptr;  // where ranks meet that have their device and its buffer
};

// One rank's training, with gradients and parameters in the memory that the exchange asks for.
absl::Status RunRank(const Training& training, std::unique_ptr<MpiTransport> transport, int rank, Outcome& outcome) {
  const ExampleJob& job = training.job;
  ASSIGN_OR_RETURN(const auto device, CreateCudaDevice({.ordinal = rank % 2}));
  ASSIGN_OR_RETURN(const auto buffer, device->Allocate(job.element_count * 4));
  if (training.allocated != nullptr) training.allocated->arrive_and_wait();
  MpiTransport* const mpi = transport.get();
  PeerExchange exchange(std::move(transport), {.algorithm = training.algorithm,
                                               .mpi = mpi,
                                               .device = device.get(),
                                               .tries_device_memory = training.without_claim});
  JobSpec spec = job.Spec(rank);
  spec.first_step = training.first_step;
  spec.join_deadline = training.join_deadline;
  for (const std::vector<float>& vector : training.state) {
    if (rank == 0) spec.optimizer_state.push_back(vector);
  }
  outcome.parameters.assign(job.element_count, -7.0f);
  if (rank == 0) outcome.parameters = training.start.empty() ? job.InitialParameters() : training.start;
  RETURN_IF_ERROR(exchange.Start(spec, outcome.parameters));
  outcome.place = exchange.memory().place;
  const bool on_device = outcome.place == MemoryPlace::kDevice;
  EXPECT_EQ(exchange.memory().parameters.empty(), !on_device);
  for (int64_t step = training.first_step; step < training.first_step + training.step_count; ++step) {
    std::vector<float> host = job.Gradient(rank, step);
    std::span<const float> gradient = host;
    if (on_device) {
      device->CopyToDevice(host.data(), buffer->data(), job.element_count * 4);
      RETURN_IF_ERROR(device->Synchronize());
      gradient = {buffer->floats(), host.size()};
    }
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange.Submit({.round = step, .bucket = b, .gradient = gradient.subspan(range.begin, range.size())});
    }
    for (int b = spec.buckets.bucket_count() - 1; b >= 0; --b) RETURN_IF_ERROR(exchange.Await(step, b));
  }
  outcome.state.assign(StateVectorCount(job.optimizer), std::vector<float>(rank == 0 ? job.element_count : 0));
  const std::vector<std::span<float>> spans(outcome.state.begin(), outcome.state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  if (on_device) {
    device->CopyToHost(exchange.memory().parameters.data(), outcome.parameters.data(), job.element_count * 4);
    RETURN_IF_ERROR(device->Synchronize());
  }
  return exchange.Finish();
}

std::vector<Outcome> RunAll(const Training& training, InMemoryNetwork& network) {
  std::vector<Outcome> outcomes(training.job.world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < training.job.world_size; ++rank) {
    threads.emplace_back([&, rank, transport = network.CreateTransport(rank)]() mutable {
      outcomes[rank].status = RunRank(training, std::move(transport), rank, outcomes[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void ExpectReference(const Training& training, const std::vector<Outcome>& outcomes, MemoryPlace place) {
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.first_step + training.step_count, &state);
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.place, place);
    EXPECT_EQ(outcome.parameters, expected);
  }
  EXPECT_EQ(outcomes[0].state, state);
}

Training TrainingOf(int world_size, OptimizerKind kind = OptimizerKind::kAdamW) {
  Training training = {.job = {.element_count = 3 * ReductionBlockElements(world_size) / 2 + 1232,
                               .bucket_bytes = 1,
                               .world_size = world_size}};
  training.job.optimizer.kind = kind;
  return training;
}

class CudaRingRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CudaRingRanks, testing::Values(1, 2, 3, 4, 8));

TEST_P(CudaRingRanks, GivesTheReferencesBitsInDeviceMemory) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    Training training = TrainingOf(GetParam(), kind);
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      training.algorithm = algorithm;
      InMemoryNetwork network(GetParam(), 1);
      network.set_moves_device_memory(std::vector<bool>(GetParam(), true));
      ExpectReference(training, RunAll(training, network), MemoryPlace::kDevice);
    }
  }
}

// A bucket is one message of several blocks. The GPUs do nothing before they are waited for, so a message that leaves
// too early has other bytes.
TEST_P(CudaRingRanks, MessagesWaitForWhatIsEnqueued) {
  const int64_t block = ReductionBlockElements(GetParam());
  Training training = TrainingOf(GetParam());
  training.job.element_count = 7 * block / 2 + 1232;
  training.job.bucket_bytes = 2 * block * 4;
  cuda_emulation::Gpu().late = true;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    training.algorithm = algorithm;
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      if (algorithm == Algorithm::kRing && order == SumOrder::kTree) continue;
      training.job.sum_order = order;
      InMemoryNetwork network(GetParam(), 11);
      network.set_moves_device_memory(std::vector<bool>(GetParam(), true));
      ExpectReference(training, RunAll(training, network), MemoryPlace::kDevice);
    }
  }
  cuda_emulation::Gpu() = {};
}

TEST_P(CudaRingRanks, GoesOnFromACheckpointInDeviceMemory) {
  Training training = TrainingOf(GetParam());
  training.step_count = 2;
  InMemoryNetwork first(GetParam(), 2), second(GetParam(), 3);
  for (InMemoryNetwork* const network : {&first, &second}) {
    network->set_moves_device_memory(std::vector<bool>(GetParam(), true));
  }
  const std::vector<Outcome> half = RunAll(training, first);
  ASSERT_EQ(half[0].status, absl::OkStatus());
  training.first_step = 2;
  training.start = half[0].parameters;
  training.state = half[0].state;
  ExpectReference(training, RunAll(training, second), MemoryPlace::kDevice);
}

TEST(CudaRing, OneLibraryThatCannotIsEnough) {
  const Training training = TrainingOf(3);
  InMemoryNetwork network(3, 4);
  network.set_moves_device_memory({true, true, false});
  ExpectReference(training, RunAll(training, network), MemoryPlace::kHost);
}

TEST(CudaRing, ALibraryThatPromisesAndCorruptsIsNotUsed) {
  for (const int world_size : {1, 3}) {
    const Training training = TrainingOf(world_size);
    InMemoryNetwork network(world_size, 5);
    network.set_moves_device_memory(std::vector<bool>(world_size, true));
    network.CorruptMessages(static_cast<int>(ControlTag::kCudaAwareData));
    ExpectReference(training, RunAll(training, network), MemoryPlace::kHost);
  }
}

TEST(CudaRing, ALibraryThatPromisesNothingIsTriedIfAsked) {
  Training training = TrainingOf(2);
  training.without_claim = true;
  InMemoryNetwork able(2, 9), corrupt(2, 9);
  ExpectReference(training, RunAll(training, able), MemoryPlace::kDevice);
  corrupt.CorruptMessages(static_cast<int>(ControlTag::kCudaAwareData));
  ExpectReference(training, RunAll(training, corrupt), MemoryPlace::kHost);
}

// Ranks 0 and 2 are no neighbours in a ring of four, but every rank of a star sends to every other.
TEST(CudaRing, TheSelfTestTriesThePairsThatExchangeGradients) {
  Training training = TrainingOf(4);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    training.algorithm = algorithm;
    InMemoryNetwork network(4, 8);
    network.set_moves_device_memory(std::vector<bool>(4, true));
    network.CorruptMessages(static_cast<int>(ControlTag::kCudaAwareData), NetworkLink{.from = 0, .to = 2});
    ExpectReference(training, RunAll(training, network),
                    algorithm == Algorithm::kRing ? MemoryPlace::kDevice : MemoryPlace::kHost);
  }
}

class ForwardingTransport : public MpiTransport {
 public:
  explicit ForwardingTransport(std::unique_ptr<MpiTransport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  int tag_max() const override { return inner_->tag_max(); }
  bool moves_device_memory() const override { return inner_->moves_device_memory(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    inner_->PostSend(peer, tag, data, token);
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    inner_->PostReceive(peer, tag, data, token);
  }
  void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) override {
    inner_->PostAllreduce(contribution, sum, token);
  }
  absl::Status Poll(std::vector<Token>& completed) override { return inner_->Poll(completed); }
  void Wait(std::chrono::microseconds longest) override { inner_->Wait(longest); }
  void Wake() override { inner_->Wake(); }
  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return inner_->TryReceive(tag, data);
  }

 private:
  const std::unique_ptr<MpiTransport> inner_;
};

// A library that sends right values once only.
class CorruptsLaterTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    constexpr int kMessagesOfFirstRound = 2;  // a bucket has one block, whose message is not longer than a chunk
    if (tag != static_cast<int>(ControlTag::kCudaAwareData) || ++sent_ <= kMessagesOfFirstRound) {
      return ForwardingTransport::PostSend(peer, tag, data, token);
    }
    corrupted_.emplace_back(data.begin(), data.end()).back() ^= std::byte{1};
    ForwardingTransport::PostSend(peer, tag, corrupted_.back(), token);
  }

 private:
  int sent_ = 0;
  std::deque<std::vector<std::byte>> corrupted_;
};

// A library that sends long messages wrong, as with a protocol of its own for them.
class CorruptsLongTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    if (tag != static_cast<int>(ControlTag::kCudaAwareData) || std::ssize(data) <= kChunkBytesMax) {
      return ForwardingTransport::PostSend(peer, tag, data, token);
    }
    corrupted_.emplace_back(data.begin(), data.end()).back() ^= std::byte{1};
    ForwardingTransport::PostSend(peer, tag, corrupted_.back(), token);
  }

 private:
  std::deque<std::vector<std::byte>> corrupted_;
};

// Notes the current GPU in every poll by another thread than the one that created the transport.
class PollWatchingTransport final : public ForwardingTransport {
 public:
  PollWatchingTransport(std::unique_ptr<MpiTransport> inner, std::set<int>* gpus)
      : ForwardingTransport(std::move(inner)), gpus_(gpus) {}
  absl::Status Poll(std::vector<Token>& completed) override {
    if (std::this_thread::get_id() != creator_) gpus_->insert(cuda_emulation::CurrentGpu());
    return ForwardingTransport::Poll(completed);
  }

 private:
  std::set<int>* const gpus_;
  const std::thread::id creator_ = std::this_thread::get_id();
};

// A library that hangs in the first message of GPU memory: from then on nothing leaves this rank, and nothing arrives.
class HangingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    if (!Hangs(tag)) ForwardingTransport::PostSend(peer, tag, data, token);
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    if (!Hangs(tag)) ForwardingTransport::PostReceive(peer, tag, data, token);
  }
  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return Hangs(tag) ? std::nullopt : ForwardingTransport::TryReceive(tag, data);
  }

 private:
  bool Hangs(int tag) { return hangs_ = hangs_ || tag == static_cast<int>(ControlTag::kCudaAwareData); }

  bool hangs_ = false;
};

TEST(CudaRing, ALibraryThatWorksOnceIsNotUsed) {
  const Training training = TrainingOf(2);
  InMemoryNetwork network(2, 10);
  network.set_moves_device_memory({true, true});
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<MpiTransport> transport = network.CreateTransport(rank);
      if (rank == 1) transport = std::make_unique<CorruptsLaterTransport>(std::move(transport));
      outcomes[rank].status = RunRank(training, std::move(transport), rank, outcomes[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectReference(training, outcomes, MemoryPlace::kHost);
}

TEST(CudaRing, ALibraryThatFailsWithLongMessagesIsNotUsed) {
  Training training = TrainingOf(2);
  training.job.element_count = 4 * ReductionBlockElements(2);
  for (const int64_t bucket_blocks : {1, 3}) {
    training.job.bucket_bytes = bucket_blocks * ReductionBlockElements(2) * 4;
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      training.algorithm = algorithm;
      InMemoryNetwork network(2, 13);
      network.set_moves_device_memory({true, true});
      std::vector<Outcome> outcomes(2);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
          auto transport = std::make_unique<CorruptsLongTransport>(network.CreateTransport(rank));
          outcomes[rank].status = RunRank(training, std::move(transport), rank, outcomes[rank]);
        });
      }
      for (std::thread& thread : threads) thread.join();
      ExpectReference(training, outcomes, bucket_blocks == 1 ? MemoryPlace::kDevice : MemoryPlace::kHost);
    }
  }
}

// The message said neither how long the self-test waited nor for which rank.
TEST(CudaRing, ARankThatHangsInTheSelfTestIsNamed) {
  Training training = TrainingOf(2);
  training.join_deadline = absl::Seconds(4);
  InMemoryNetwork network(2, 8);
  network.set_moves_device_memory({true, true});
  std::vector<absl::Status> status(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome outcome;
      std::unique_ptr<MpiTransport> transport = network.CreateTransport(rank);
      if (rank == 1) transport = std::make_unique<HangingTransport>(std::move(transport));
      status[rank] = RunRank(training, std::move(transport), rank, outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(status[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status[0].message()),
              testing::HasSubstr("messages of GPU memory did not arrive within 4s: rank 1 does not answer"));
}

// UCX takes the polling thread's current GPU for the one whose memory it moves.
TEST(CudaRing, TheThreadThatPollsHasTheGpuOfItsRank) {
  Training training = TrainingOf(2);
  training.step_count = 20;  // enough for the background thread to poll as well
  InMemoryNetwork network(2, 7);
  network.set_moves_device_memory({true, true});
  std::vector<std::set<int>> gpus(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome outcome;
      auto transport = std::make_unique<PollWatchingTransport>(network.CreateTransport(rank), &gpus[rank]);
      EXPECT_EQ(RunRank(training, std::move(transport), rank, outcome), absl::OkStatus());
      EXPECT_EQ(outcome.place, MemoryPlace::kDevice);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) EXPECT_THAT(gpus[rank], testing::ElementsAre(rank));
}

// The host's waits for the GPU in a step, for each rank and bucket.
double WaitsPerBucket(Training training) {
  int64_t waits[2];
  for (const int more : {0, 1}) {
    training.step_count = 3 * more;
    InMemoryNetwork network(training.job.world_size, 12);
    network.set_moves_device_memory(std::vector<bool>(training.job.world_size, true));
    cuda_emulation::TakeCounts();
    for (const Outcome& outcome : RunAll(training, network)) EXPECT_EQ(outcome.place, MemoryPlace::kDevice);
    waits[more] = cuda_emulation::TakeCounts().host_waits;
  }
  // RunRank waits once a step for its gradient.
  const double of_a_rank = static_cast<double>(waits[1] - waits[0]) / 3 / training.job.world_size - 1;
  return of_a_rank / training.job.Buckets().bucket_count();
}

// A bucket has several blocks. Block by block, the waits were as many as the chunks that a rank adds or updates.
TEST(CudaRing, WaitsForTheGpuOnceForEachMessage) {
  Training training = {.job = {.element_count = 3 << 19, .bucket_bytes = 2 << 20, .world_size = 2}};
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    training.algorithm = algorithm;
    for (const int world_size : {2, 4}) {
      training.job.world_size = world_size;
      SCOPED_TRACE(testing::Message() << world_size << " ranks, " << (algorithm == Algorithm::kRing ? "ring" : "star"));
      const double waits = WaitsPerBucket(training);
      // Before what a rank sends first, before each message with a sum or a result, and before the bucket is ready. A
      // star packs what all owners get before it waits: three times, or a few more where it has no slot for all.
      EXPECT_LT(waits, algorithm == Algorithm::kRing ? world_size + 1.5 : 4);
      // A counter that does not count would pass, too.
      EXPECT_GE(waits, 2);
    }
  }
}

TEST(CudaRing, WithoutDeviceMemoryForItGoesByWayOfTheHost) {
  Training training = TrainingOf(2);
  // Otherwise the exchange of one rank could take the memory of the other's device.
  std::barrier<> allocated(2);
  training.allocated = &allocated;
  // Enough for the memory that every device allocates and for the gradients, and no more. A test whose rank hung has
  // left buffers.
  const int64_t vector_bytes = training.job.element_count * 4;
  cuda_emulation::Gpu().memory_bytes =
      cuda_emulation::DeviceBytes() + 2 * ((int64_t{32} << 20) + vector_bytes) + vector_bytes;
  InMemoryNetwork network(2, 6);
  network.set_moves_device_memory({true, true});
  ExpectReference(training, RunAll(training, network), MemoryPlace::kHost);
  cuda_emulation::Gpu() = {};
}

// The GPU memory of a rank that exchanges nothing yet.
int64_t BytesOfADevice(const ExampleJob& job) {
  const int64_t before = cuda_emulation::DeviceBytes();
  const auto device = CreateCudaDevice({}).value();
  const auto buffer = device->Allocate(job.element_count * 4).value();
  return cuda_emulation::DeviceBytes() - before;
}

// Memory for its messages is taken at the start, when all ranks may still go by way of the host. The plan counts it.
TEST(CudaRing, TakesThePlannedMemoryOrGoesByWayOfTheHost) {
  Training training = TrainingOf(2);
  const int64_t block_bytes = ReductionBlockElements(2) * 4;
  training.job.element_count = 7 * block_bytes / 4 + 1232;
  training.job.bucket_bytes = 2 * block_bytes;
  const BucketMap buckets = training.job.Buckets();
  // The devices of both ranks share what the emulated GPUs have.
  const int64_t others = cuda_emulation::DeviceBytes() + 2 * BytesOfADevice(training.job);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    SCOPED_TRACE(algorithm == Algorithm::kRing ? "ring" : "star");
    training.algorithm = algorithm;
    int64_t planned = 0;
    for (int rank = 0; rank < 2; ++rank) {
      planned += PeerExchange::CudaAwareBytes(algorithm, training.job.optimizer, buckets, rank);
    }
    // The self-test's memory and roundings, which are less than the messages of one rank.
    const int64_t test_bytes = 2 * 2 * (kChunkBytesMax + buckets.bucket_bytes() / 2) + (64 << 10);
    const int64_t messages_bytes =
        4 * (algorithm == Algorithm::kRing ? RingMachine::GpuElements(buckets) : StarMachine::GpuElements(buckets));
    ASSERT_LT(test_bytes, messages_bytes);
    for (const bool fits : {true, false}) {
      // One of the two ranks gets its memory.
      cuda_emulation::Gpu().memory_bytes = others + planned + (fits ? test_bytes : -1);
      std::barrier<> allocated(2);
      training.allocated = &allocated;
      InMemoryNetwork network(2, 6);
      network.set_moves_device_memory({true, true});
      ExpectReference(training, RunAll(training, network), fits ? MemoryPlace::kDevice : MemoryPlace::kHost);
    }
  }
  cuda_emulation::Gpu() = {};
}

}  // namespace
}  // namespace starring
