// Ranks on emulated GPUs, in threads of this process, whose gradients a stub of NCCL adds (tests/nccl_stub).
#include "worker/exchange/peer/nccl/nccl_transport.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
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
#include "common/transport/message_pump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/peer/nccl/nccl_library.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

// The rank with this number behaves in another way.
struct Oddity {
  int rank = -1;
  bool submits_nothing = false;
  std::function<void(absl::StatusOr<NcclLibrary>& library)> library;
  std::function<void()> after_release;
};

// A network that notes which peers its rank needs.
class NotingNetwork final : public Transport {
 public:
  NotingNetwork(std::unique_ptr<Transport> inner, std::set<int>* needed) : inner_(std::move(inner)), needed_(*needed) {}
  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  int tag_max() const override { return inner_->tag_max(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    inner_->PostSend(peer, tag, data, token);
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    inner_->PostReceive(peer, tag, data, token);
  }
  void NeedPeer(int peer) override { needed_.insert(peer); }
  absl::Status Poll(std::vector<Token>& completed) override { return inner_->Poll(completed); }
  void Wait(std::chrono::microseconds longest) override { inner_->Wait(longest); }
  void Wake() override { inner_->Wake(); }
  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return inner_->TryReceive(tag, data);
  }

 private:
  const std::unique_ptr<Transport> inner_;
  std::set<int>& needed_;
};

struct Training {
  ExampleJob job;
  int64_t first_step = 0, step_count = 3;
  std::vector<float> start;               // rank 0's parameters; empty: the job's
  std::vector<std::vector<float>> state;  // rank 0's optimizer state; empty: zeros
  absl::Duration exchange_deadline = absl::Seconds(60);
  std::chrono::nanoseconds abort_deadline = std::chrono::seconds(60);
  bool one_gpu = false, may_share_gpus = false;
  int version = 0;  // 0: the stub's
  Oddity odd;
};

struct Outcome {
  absl::Status status;
  bool was_released = false;
  std::set<int> needed;  // peers
  std::string said;
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;  // rank 0
};

absl::StatusOr<NcclLibrary> LibraryOf(const Training& training, int rank) {
  absl::StatusOr<NcclLibrary> library = NcclLibrary::Load({});
  if (library.ok() && training.version > 0) library->version = training.version;
  if (rank == training.odd.rank && training.odd.library) training.odd.library(library);
  return library;
}

absl::Status Steps(const Training& training, const JobSpec& spec, CudaDevice* device, PeerExchange& exchange) {
  ASSIGN_OR_RETURN(const auto buffer, device->Allocate(training.job.element_count * 4));
  for (int64_t step = training.first_step; step < training.first_step + training.step_count; ++step) {
    const std::vector<float> host = training.job.Gradient(spec.rank, step);
    device->CopyToDevice(host.data(), buffer->data(), training.job.element_count * 4);
    RETURN_IF_ERROR(device->Synchronize());
    const std::span<const float> gradient(buffer->floats(), host.size());
    const bool submits = !(training.odd.submits_nothing && spec.rank == training.odd.rank);
    for (int b = 0; b < spec.buckets.bucket_count() && submits; ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange.Submit({.round = step, .bucket = b, .gradient = gradient.subspan(range.begin, range.size())});
    }
    std::vector<double> none = {0};
    if (!submits) return exchange.Sum(SumPurpose::kStopVote, none);
    for (int b = spec.buckets.bucket_count() - 1; b >= 0; --b) RETURN_IF_ERROR(exchange.Await(step, b));
  }
  return absl::OkStatus();
}

absl::Status RunSteps(const Training& training, CudaDevice* device, PeerExchange& exchange, int rank,
                      Outcome& outcome) {
  const ExampleJob& job = training.job;
  JobSpec spec = job.Spec(rank);
  spec.first_step = training.first_step;
  spec.exchange_deadline = training.exchange_deadline;
  for (const std::vector<float>& vector : training.state) {
    if (rank == 0) spec.optimizer_state.push_back(vector);
  }
  outcome.parameters.assign(job.element_count, -7.0f);
  if (rank == 0) outcome.parameters = training.start.empty() ? job.InitialParameters() : training.start;
  RETURN_IF_ERROR(exchange.Start(spec, outcome.parameters));
  EXPECT_EQ(exchange.memory().place, ExchangeMemory::Place::kDevice);
  RETURN_IF_ERROR(Steps(training, spec, device, exchange));
  outcome.state.assign(StateVectorCount(job.optimizer), std::vector<float>(rank == 0 ? job.element_count : 0));
  const std::vector<std::span<float>> spans(outcome.state.begin(), outcome.state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  device->CopyToHost(exchange.memory().parameters.data(), outcome.parameters.data(), job.element_count * 4);
  RETURN_IF_ERROR(device->Synchronize());
  return exchange.Finish();
}

absl::Status RunRank(const Training& training, std::unique_ptr<Transport> network, int rank, Outcome& outcome) {
  ASSIGN_OR_RETURN(const auto device, CreateCudaDevice({.ordinal = training.one_gpu ? 0 : rank % 2}));
  auto transport = std::make_unique<NcclTransport>(std::make_unique<NotingNetwork>(std::move(network), &outcome.needed),
                                                   NcclTransport::Options{.gpu = device.get(),
                                                                          .library = LibraryOf(training, rank),
                                                                          .may_share_gpus = training.may_share_gpus,
                                                                          .abort_deadline = training.abort_deadline});
  NcclTransport* const nccl = transport.get();
  PeerExchange exchange(std::move(transport),
                        {.algorithm = PeerExchange::Algorithm::kAllreduce,
                         .gpu = device.get(),
                         .nccl = nccl,
                         .stall = {.say = [&](const std::string& line) { outcome.said += line + "\n"; }}});
  const absl::Status status = RunSteps(training, device.get(), exchange, rank, outcome);
  if (!status.ok()) exchange.Abort(status);
  outcome.was_released = exchange.Release();
  if (rank == training.odd.rank && training.odd.after_release) training.odd.after_release();
  return status;
}

std::vector<Outcome> RunAll(const Training& training) {
  InMemoryNetwork network(training.job.world_size, 1);
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

// Integers, because NCCL adds in an order of its own.
Training TrainingOf(int world_size, OptimizerKind kind = OptimizerKind::kAdamW) {
  Training training = {.job = {.element_count = 3 * ReductionBlockElements(world_size) / 2 + 1232,
                               .bucket_bytes = 1,
                               .world_size = world_size,
                               .values = GradientValues::kIntegers}};
  training.job.optimizer.kind = kind;
  return training;
}

void ExpectReference(const Training& training, const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.first_step + training.step_count, &state);
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_TRUE(outcome.was_released);
    EXPECT_EQ(outcome.parameters, expected);
  }
  EXPECT_EQ(outcomes[0].state, state);
}

void ExpectRefusal(const Training& training, const std::string& text) {
  for (const Outcome& outcome : RunAll(training)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("--sync=nccl: " + text));
  }
}

TEST(NcclTransport, GivesTheReferencesBits) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    for (const int world_size : {1, 2}) {
      const Training training = TrainingOf(world_size, kind);
      ExpectReference(training, RunAll(training));
      EXPECT_EQ(cuda_emulation::DeviceBytes(), 0);
    }
  }
}

// Work on streams is late or takes turns: an update before its sum is there, or a sum that is read too early, shows.
TEST(NcclTransport, WaitsForTheGpu) {
  for (const bool late : {true, false}) {
    cuda_emulation::Gpu().late = late;
    cuda_emulation::Gpu().async = !late;
    const Training training = TrainingOf(2);
    ExpectReference(training, RunAll(training));
    cuda_emulation::Gpu() = {};
  }
}

TEST(NcclTransport, GoesOnFromACheckpoint) {
  Training training = TrainingOf(2);
  training.step_count = 2;
  const std::vector<Outcome> half = RunAll(training);
  ASSERT_EQ(half[0].status, absl::OkStatus());
  training.first_step = 2;
  training.start = half[0].parameters;
  training.state = half[0].state;
  ExpectReference(training, RunAll(training));
}

TEST(NcclTransport, TwoRanksOnOneGpuNeedARelease) {
  Training training = TrainingOf(2);
  training.one_gpu = true;
  training.version = nccl::kVersionOfSharedGpus;
  ExpectRefusal(training,
                "ranks 0 and 1 compute on one GPU, and NCCL 2.30.0 refuses that: give each rank a GPU, or set "
                "NCCL_MULTI_RANK_GPU_ENABLE=1 for all of them with NCCL 2.30.0 or newer");
  training.may_share_gpus = true;
  ExpectReference(training, RunAll(training));
  training.version = nccl::kVersionOfSharedGpus - 1;
  ExpectRefusal(training, "ranks 0 and 1 compute on one GPU, and NCCL 2.29.99 refuses that");
}

// To NCCL both are the device with their number on the PCI bus.
TEST(NcclTransport, PartsOfOneGpuAreOneGpu) {
  cuda_emulation::Gpu().is_one_gpu = true;
  ExpectRefusal(TrainingOf(2), "ranks 0 and 1 compute on one GPU, and NCCL 2.27.5 refuses that");
  cuda_emulation::Gpu() = {};
}

TEST(NcclTransport, TooLittleMemoryOfAGpuIsRefusedWithTheWayOut) {
  const Training training = TrainingOf(2);
  {
    const auto first = CreateCudaDevice({.ordinal = 0}), second = CreateCudaDevice({.ordinal = 1});
    ASSERT_TRUE(first.ok() && second.ok());
    // The emulated GPUs share one memory. The rest of it does not hold the parameters of any rank.
    cuda_emulation::Gpu().memory_bytes = cuda_emulation::DeviceBytes() + 2 * training.job.element_count;
  }
  for (const Outcome& outcome : RunAll(training)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()),
                testing::ContainsRegex("parameters and optimizer state: no GPU memory for a buffer of .* bytes: .* "
                                       "free: give a smaller --global_batch, more GPUs or --sync=ring"));
  }
  cuda_emulation::Gpu() = {};
}

TEST(NcclTransport, RefusesAnotherReleaseByName) {
  Training training = TrainingOf(2);
  training.odd = {.rank = 1, .library = [](auto& library) { library->version = 22807; }};
  ExpectRefusal(training, "rank 1 has NCCL 2.28.7, rank 0 has 2.27.5: give all ranks the same release");
}

TEST(NcclTransport, RefusesARankWithoutNccl) {
  for (const int rank : {0, 1}) {
    Training training = TrainingOf(2);
    training.odd = {.rank = rank, .library = [](auto& library) { library = absl::UnavailableError("there is none"); }};
    ExpectRefusal(training, "rank " + std::to_string(rank) + ": there is none: install NCCL on every host");
  }
}

// The allreduce of rank 0 would spin for ever.
TEST(NcclTransport, ARankThatDoesNotComeEndsTheOthersAtTheDeadline) {
  Training training = TrainingOf(2);
  training.exchange_deadline = absl::Seconds(2);
  training.odd = {.rank = 1, .submits_nothing = true};
  const std::vector<Outcome> outcomes = RunAll(training);
  EXPECT_FALSE(outcomes[0].status.ok());
  EXPECT_FALSE(outcomes[1].status.ok());
  // NCCL is ended before, so nothing writes any more, and the network may send this rank's last words.
  EXPECT_TRUE(outcomes[0].was_released);
  // A rank that has left would end the wait before the deadline.
  EXPECT_THAT(outcomes[0].needed, testing::ElementsAre(1));
  EXPECT_THAT(std::string(outcomes[0].status.message()), HasSubstr("did not come within 2s"));
}

// ncclCommAbort that does not return before the test lets it.
struct SlowAbort {
  std::atomic<bool> may_return = false, has_returned = false;
  nccl::Result (*real)(nccl::Communicator communicator) = nullptr;

  static SlowAbort& The() {
    static SlowAbort& slow = *new SlowAbort;
    return slow;
  }
  static nccl::Result Call(nccl::Communicator communicator) {
    The().may_return.wait(false);
    const nccl::Result result = The().real(communicator);
    The().has_returned = true;
    The().has_returned.notify_all();
    return result;
  }
  static void LetReturn() {
    The().may_return = true;
    The().may_return.notify_all();
    The().has_returned.wait(false);
  }
};

TEST(NcclTransport, AnAbortThatHangsDoesNotHideTheCause) {
  Training training = TrainingOf(2);
  training.exchange_deadline = absl::Seconds(1);
  training.abort_deadline = std::chrono::milliseconds(50);
  training.odd = {.rank = 1,
                  .library =
                      [](auto& library) {
                        SlowAbort::The().real = std::exchange(library->comm_abort, SlowAbort::Call);
                        library->all_reduce = [](auto...) { return nccl::Result::kRemoteError; };
                      },
                  .after_release = SlowAbort::LetReturn};
  const std::vector<Outcome> outcomes = RunAll(training);
  EXPECT_THAT(std::string(outcomes[1].status.message()), HasSubstr("NCCL, queueing an allreduce: "));
  EXPECT_FALSE(outcomes[1].was_released);
  EXPECT_THAT(outcomes[1].said, HasSubstr("NCCL does not end its work on the GPU, after: NCCL, queueing an allreduce"));
  EXPECT_TRUE(outcomes[0].was_released);
}

// An error of NCCL's own, where the network knows of none.
TEST(NcclTransport, AnErrorOfNcclEndsTheRank) {
  Training training = TrainingOf(2);
  training.odd = {.rank = 1, .library = [](auto& library) {
                    library->all_reduce = [](auto...) { return nccl::Result::kRemoteError; };
                  }};
  const std::vector<Outcome> outcomes = RunAll(training);
  EXPECT_EQ(outcomes[1].status.code(), absl::StatusCode::kUnavailable) << outcomes[1].status;
  EXPECT_THAT(std::string(outcomes[1].status.message()), HasSubstr("NCCL, queueing an allreduce: "));
  EXPECT_THAT(std::string(outcomes[0].status.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace starring
