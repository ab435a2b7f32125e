#include "worker/exchange/peer/gpu/gpu_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// A multiple of the bytes that one access of any kernel has.
constexpr int64_t kStrideElements = 64;
// Of the self-test: so many updates of so many elements for each rank.
constexpr int kTestRounds = 100;
constexpr int64_t kTestElements = 1024;

int64_t StrideOf(int64_t element_count) {
  return (element_count + kStrideElements - 1) / kStrideElements * kStrideElements;
}

// The first text that is not empty, in the order of ranks, on all ranks.
absl::StatusOr<std::string> FirstOf(MessagePump& pump, const std::string& mine, const CollectiveOptions& join) {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump, mine, join));
  std::string first;
  for (const std::string& text : all) {
    if (first.empty()) first = text;
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, first, join));
  return first;
}

// Integers, so that any sum of them is exact.
float PatternOf(int rank, int round, int64_t element) {
  return static_cast<float>((element * 31 + rank * 977 + round * 131) % 1021);
}

// The ranks update a vector together as in a training, each its part. A rank that reads a gradient before it is there
// finds NaN, or the pattern of the round before.
class SelfTest {
 public:
  SelfTest(MessagePump& pump, CudaDevice& device, const GpuMemory& memory)
      : pump_(pump),
        device_(device),
        memory_(memory),
        count_(std::min<int64_t>(kTestElements * pump.world_size(), std::ssize(memory.gradients(0)))),
        host_(static_cast<size_t>(count_)),
        expected_(static_cast<size_t>(count_), 0.0f) {}

  // Why the memory does not serve; empty: it does. A rank that has found an error goes on, because others wait for it.
  absl::StatusOr<std::string> Run(const CollectiveOptions& join) {
    ASSIGN_OR_RETURN(math_, device_.CreateVectorMath());
    std::ranges::fill(host_, std::numeric_limits<float>::quiet_NaN());
    math_->CopyToDevice(host_.data(), memory_.gradients(pump_.rank()).data(), count_ * kFloatBytes);
    math_->CopyToDevice(expected_.data(), memory_.parameters(pump_.rank()).data(), count_ * kFloatBytes);
    std::string error = WaitForGpu();
    for (int round = 0; round < kTestRounds; ++round) {
      std::string found = Submit(round);
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (found.empty()) found = Update();
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (found.empty()) found = Check(round);
      if (error.empty()) error = std::move(found);
    }
    // Gaps between tensors must be zero, and backward does not write them.
    std::ranges::fill(host_, 0.0f);
    for (const std::span<float> array : {memory_.gradients(pump_.rank()), memory_.parameters(pump_.rank())}) {
      math_->CopyToDevice(host_.data(), array.data(), count_ * kFloatBytes);
    }
    std::string found = WaitForGpu();
    return error.empty() ? found : error;
  }

 private:
  std::string WaitForGpu() { return std::string(math_->Synchronize().message()); }

  std::string Submit(int round) {
    for (int64_t e = 0; e < count_; ++e) host_[static_cast<size_t>(e)] = PatternOf(pump_.rank(), round, e);
    math_->CopyToDevice(host_.data(), memory_.gradients(pump_.rank()).data(), count_ * kFloatBytes);
    return WaitForGpu();
  }

  std::string Update() {
    const int rank = pump_.rank(), ranks = pump_.world_size();
    CudaPeerUpdate update = {.range = {rank * count_ / ranks, (rank + 1) * count_ / ranks},
                             .element_count = count_,
                             .reduction = {.order = SumOrder::kChain, .world_size = ranks},
                             .rank = rank,
                             .learning_rate = 1.0f};
    for (int other = 0; other < ranks; ++other) {
      update.gradients[other] = memory_.gradients(other).data();
      update.parameters[other] = memory_.parameters(other).data();
    }
    math_->ApplyPeerUpdate(OptimizerConfig{}, update);
    return WaitForGpu();
  }

  std::string Check(int round) {
    math_->CopyToHost(memory_.parameters(pump_.rank()).data(), host_.data(), count_ * kFloatBytes);
    if (std::string error = WaitForGpu(); !error.empty()) return error;
    for (int64_t e = 0; e < count_; ++e) {
      float& expected = expected_[static_cast<size_t>(e)];
      for (int other = 0; other < pump_.world_size(); ++other) expected -= PatternOf(other, round, e);
      if (host_[static_cast<size_t>(e)] == expected) continue;
      const int64_t owner = ((e + 1) * pump_.world_size() - 1) / count_;
      return absl::StrCat("rank ", owner, " has written ", host_[static_cast<size_t>(e)], " and not ", expected,
                          " into the GPU memory of rank ", pump_.rank(), ", in round ", round, " of a test");
    }
    return "";
  }

  MessagePump& pump_;
  CudaDevice& device_;
  const GpuMemory& memory_;
  const int64_t count_;
  std::unique_ptr<CudaVectorMath> math_;
  std::vector<float> host_;
  std::vector<float> expected_;  // the parameters, after the rounds so far
};

// What a rank says before it allocates.
std::string WhyNot(const MessagePump& pump, const CudaDevice* device) {
  if (device == nullptr) return absl::StrCat("rank ", pump.rank(), " does not compute on a GPU");
  if (pump.world_size() <= kPeerRanksMax) return "";
  return absl::StrCat(pump.world_size(), " ranks are more than the ", kPeerRanksMax, " that may share GPU memory");
}

}  // namespace

GpuMemory::GpuMemory(CudaDevice* device, int64_t element_count)
    : device_(*device), element_count_(element_count), stride_(StrideOf(element_count)) {}

GpuMemory::~GpuMemory() {
  others_.clear();
  // Another rank may still map it.
  if (!may_free_) static_cast<void>(own_.release());
}

void GpuMemory::CloseOthers() {
  others_.clear();
  may_free_ = true;
}

absl::StatusOr<std::string> GpuMemory::Allocate() {
  ASSIGN_OR_RETURN(own_, device_.AllocateShared(2 * stride_ * kFloatBytes));
  return device_.Export(own_.get());
}

// Each text is the name of a piece in hexadecimal digits.
absl::Status GpuMemory::Open(const std::vector<std::string>& pieces, int rank) {
  floats_.assign(pieces.size(), nullptr);
  floats_[rank] = own_->floats();
  for (int other = 0; other < std::ssize(pieces); ++other) {
    if (other == rank) continue;
    auto opened = device_.OpenShared(absl::HexStringToBytes(pieces[other]), own_->size_bytes());
    if (!opened.ok()) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " cannot map the GPU memory of rank ", other, ": ",
                                                 std::string(opened.status().message())));
    }
    others_.push_back(*std::move(opened));
    floats_[other] = others_.back()->floats();
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuMemory::Outcome> GpuMemory::Meet(MessagePump& pump, CudaDevice* device, int64_t element_count,
                                                   const CollectiveOptions& join) {
  CHECK_GE(pump.world_size(), 2);
  Outcome outcome;
  ASSIGN_OR_RETURN(outcome.refusal, FirstOf(pump, WhyNot(pump, device), join));
  if (!outcome.refusal.empty()) return outcome;
  auto memory = absl::WrapUnique(new GpuMemory(device, element_count));
  const absl::StatusOr<std::string> name = memory->Allocate();
  // A rank with an error goes on: all must take part in all messages.
  ASSIGN_OR_RETURN(outcome.refusal,
                   FirstOf(pump,
                           name.ok() ? ""
                                     : absl::StrCat("rank ", pump.rank(), " cannot share memory of its GPU: ",
                                                    std::string(name.status().message())),
                           join));
  if (!outcome.refusal.empty()) {
    memory->may_free_ = true;  // no rank has mapped it
    return outcome;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump, absl::BytesToHexString(*name), join));
  std::string list = absl::StrJoin(all, "\n");
  RETURN_IF_ERROR(SendTextFromRoot(pump, list, join));
  const std::vector<std::string> pieces = absl::StrSplit(list, '\n');
  if (std::ssize(pieces) != pump.world_size()) {
    return absl::InternalError(absl::StrCat(pieces.size(), " places of GPU memory for ", pump.world_size(), " ranks"));
  }
  const absl::Status opened = memory->Open(pieces, pump.rank());
  ASSIGN_OR_RETURN(outcome.refusal, FirstOf(pump, std::string(opened.message()), join));
  if (outcome.refusal.empty()) {
    ASSIGN_OR_RETURN(const std::string error, SelfTest(pump, *device, *memory).Run(join));
    ASSIGN_OR_RETURN(outcome.refusal, FirstOf(pump, error, join));
  }
  if (outcome.refusal.empty()) {
    outcome.memory = std::move(memory);
    return outcome;
  }
  memory->CloseOthers();
  RETURN_IF_ERROR(Barrier(pump, join));
  return outcome;
}

}  // namespace starring
