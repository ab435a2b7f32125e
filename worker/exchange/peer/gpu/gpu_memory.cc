#include "worker/exchange/peer/gpu/gpu_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// A multiple of the bytes that one access of any kernel has.
constexpr int64_t kStrideElements = 64;
// The self-test has so many updates, of so many elements for each rank, which several blocks of a kernel share.
constexpr int kTestRounds = 100;
constexpr int64_t kTestElements = 8192;

int64_t StrideOf(int64_t element_count) {
  return (element_count + kStrideElements - 1) / kStrideElements * kStrideElements;
}

// The ranks update a vector together as in a training, and in each round each rank has another part of it. So kernels
// read what kernels of this and of other ranks have written. The numbers are integers, whose sums are exact. A rank
// that reads a gradient before it is there finds NaN, or that of the round before.
class SelfTest {
 public:
  SelfTest(MessagePump& pump, CudaDevice& device, const GpuMemory& memory)
      : pump_(pump),
        device_(device),
        memory_(memory),
        rank_(pump.rank()),
        ranks_(pump.world_size()),
        count_(std::min<int64_t>(kTestElements * ranks_, std::ssize(memory.gradients(0)))),
        host_(static_cast<size_t>(count_), std::numeric_limits<float>::quiet_NaN()),
        expected_(static_cast<size_t>(count_), 0.0f) {}

  absl::Status Allocate() {
    ASSIGN_OR_RETURN(math_, device_.CreateVectorMath());
    ASSIGN_OR_RETURN(pattern_, device_.Allocate(count_ * kFloatBytes));
    ASSIGN_OR_RETURN(zeros_, device_.Allocate(count_ * kFloatBytes));
    return absl::OkStatus();
  }

  // Why the memory does not serve; empty: it does. A rank that has found an error goes on, because others wait for it.
  // REQUIRES: all ranks have allocated.
  absl::StatusOr<std::string> Run(const CollectiveOptions& join) {
    math_->CopyToDevice(host_.data(), Gradients(rank_), count_ * kFloatBytes);
    math_->CopyToDevice(expected_.data(), Parameters(rank_), count_ * kFloatBytes);
    const auto own = static_cast<float>(rank_);
    math_->CopyToDevice(&own, Gradients(rank_), kFloatBytes);
    std::string error = WaitForGpu();
    RETURN_IF_ERROR(Barrier(pump_, join));
    if (error.empty()) error = CheckNames();
    RETURN_IF_ERROR(Barrier(pump_, join));
    for (int round = 0; round < kTestRounds; ++round) {
      std::string found = Submit(round);
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (found.empty()) found = Update(round);
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (found.empty()) found = Check(round);
      if (error.empty()) error = std::move(found);
    }
    // Gaps between tensors must be zero, and backward does not write them.
    math_->CopyToDevice(zeros_host_.data(), Gradients(rank_), count_ * kFloatBytes);
    math_->CopyToDevice(zeros_host_.data(), Parameters(rank_), count_ * kFloatBytes);
    std::string found = WaitForGpu();
    return error.empty() ? found : error;
  }

 private:
  float* Gradients(int rank) const { return memory_.gradients(rank).data(); }
  float* Parameters(int rank) const { return memory_.parameters(rank).data(); }
  std::string WaitForGpu() { return std::string(math_->Synchronize().message()); }
  static float PatternOf(int rank, int round, int64_t element) {
    return static_cast<float>((element * 31 + rank * 977) % 1021 + round);
  }
  int PartOf(int64_t element) const { return static_cast<int>(((element + 1) * ranks_ - 1) / count_); }

  // Each piece is the one of its rank.
  std::string CheckNames() {
    for (int other = 0; other < ranks_; ++other) {
      float found = -1;
      // As a ring copies.
      math_->RunPeerHop({.rows = ElementRange{0, 1}, .left = Gradients(other), .out = pattern_->floats()});
      math_->CopyToHost(pattern_->data(), &found, kFloatBytes);
      if (std::string error = WaitForGpu(); !error.empty()) return error;
      if (found != static_cast<float>(other)) {
        return absl::StrCat("rank ", rank_, " finds ", found, " in the GPU memory of rank ", other,
                            ", which has written its number there");
      }
    }
    return "";
  }

  // A kernel writes the gradient, as in a training.
  std::string Submit(int round) {
    for (int64_t e = 0; e < count_; ++e) host_[static_cast<size_t>(e)] = PatternOf(rank_, round, e);
    math_->CopyToDevice(host_.data(), pattern_->data(), count_ * kFloatBytes);
    math_->Add(pattern_->floats(), zeros_->floats(), Gradients(rank_), count_);
    return WaitForGpu();
  }

  std::string Update(int round) {
    const int part = (rank_ + round) % ranks_;
    CudaPeerUpdate update = {.rows = ElementRange{part * count_ / ranks_, (part + 1) * count_ / ranks_},
                             .element_count = count_,
                             .reduction = {.order = SumOrder::kChain, .world_size = ranks_},
                             .rank = rank_,
                             .learning_rate = 1.0f};
    for (int other = 0; other < ranks_; ++other) {
      update.gradients[other] = Gradients(other);
      update.parameters[other] = Parameters(other);
    }
    math_->ApplyPeerUpdate(OptimizerConfig{}, update);
    return WaitForGpu();
  }

  std::string Check(int round) {
    math_->CopyToHost(Parameters(rank_), host_.data(), count_ * kFloatBytes);
    if (std::string error = WaitForGpu(); !error.empty()) return error;
    for (int64_t e = 0; e < count_; ++e) {
      float& expected = expected_[static_cast<size_t>(e)];
      for (int other = 0; other < ranks_; ++other) expected -= PatternOf(other, round, e);
      if (host_[static_cast<size_t>(e)] == expected) continue;
      const int writer = (PartOf(e) + ranks_ - round % ranks_) % ranks_;
      return absl::StrCat("rank ", writer, " has written ", host_[static_cast<size_t>(e)], " and not ", expected,
                          " into the GPU memory of rank ", rank_, ", in round ", round, " of a test");
    }
    return "";
  }

  MessagePump& pump_;
  CudaDevice& device_;
  const GpuMemory& memory_;
  const int rank_, ranks_;
  const int64_t count_;
  std::unique_ptr<CudaVectorMath> math_;
  std::unique_ptr<DeviceBuffer> pattern_, zeros_;
  std::vector<float> host_;
  std::vector<float> expected_;  // the parameters, after the rounds so far
  const std::vector<float> zeros_host_ = std::vector<float>(static_cast<size_t>(count_), 0.0f);
};

// Said by a rank before it allocates.
absl::Status WhyNot(const MessagePump& pump, const CudaDevice* device) {
  if (device == nullptr) {
    return absl::UnavailableError(absl::StrCat("rank ", pump.rank(), " does not compute on a GPU"));
  }
  if (pump.world_size() <= kPeerRanksMax) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(pump.world_size(), " ranks are more than the ", kPeerRanksMax, " that may share GPU memory"));
}

// "rank 1 WHAT: MESSAGE", with the code.
absl::Status OfRank(int rank, absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("rank ", rank, " ", what, ": ", std::string(status.message())));
}

}  // namespace

GpuMemory::GpuMemory(CudaDevice* device, int64_t element_count)
    : device_(*device), element_count_(element_count), stride_(StrideOf(element_count)) {}

GpuMemory::~GpuMemory() {
  others_.clear();
  // Another rank may still map it.
  if (!may_free_) static_cast<void>(own_.release());
}

int64_t GpuMemory::Bytes(int64_t element_count) { return CudaSharedBytes(2 * StrideOf(element_count) * kFloatBytes); }

absl::Status GpuMemory::Disband(MessagePump& pump, const CollectiveOptions& end) {
  others_.clear();
  RETURN_IF_ERROR(Barrier(pump, end));
  may_free_ = true;
  return absl::OkStatus();
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
    RETURN_IF_ERROR(OfRank(rank, absl::StrCat("cannot map the GPU memory of rank ", other), opened.status()));
    others_.push_back(*std::move(opened));
    floats_[other] = others_.back()->floats();
  }
  return absl::OkStatus();
}

absl::Status AgreeOnFirstError(MessagePump& pump, const CollectiveOptions& join, absl::Status* error) {
  // "CODE<tab>MESSAGE", or nothing.
  const std::string text =
      error->ok() ? "" : absl::StrCat(static_cast<int>(error->code()), "\t", std::string(error->message()));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump, text, join));
  std::string first;
  for (const std::string& one : all) {
    if (first.empty()) first = one;
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, first, join));
  *error = absl::OkStatus();
  if (first.empty()) return absl::OkStatus();
  const size_t tab = first.find('\t');
  int code = 0;
  if (tab == std::string::npos || !absl::SimpleAtoi(first.substr(0, tab), &code) || code == 0) {
    return absl::InternalError(absl::StrCat("\"", first, "\" is no error: all ranks must run the same build"));
  }
  *error = absl::Status(static_cast<absl::StatusCode>(code), first.substr(tab + 1));
  return absl::OkStatus();
}

absl::StatusOr<GpuMemory::Outcome> GpuMemory::Meet(MessagePump& pump, CudaDevice* device, int64_t element_count,
                                                   const CollectiveOptions& join) {
  CHECK_GE(pump.world_size(), 2);
  Outcome outcome;
  outcome.refusal = WhyNot(pump, device);
  RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &outcome.refusal));
  if (!outcome.refusal.ok()) return outcome;
  auto memory = absl::WrapUnique(new GpuMemory(device, element_count));
  const absl::StatusOr<std::string> name = memory->Allocate();
  // A rank with an error goes on: all must take part in all messages.
  outcome.refusal = OfRank(pump.rank(), "cannot share memory of its GPU", name.status());
  RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &outcome.refusal));
  if (!outcome.refusal.ok()) {
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
  outcome.refusal = memory->Open(pieces, pump.rank());
  {
    SelfTest test(pump, *device, *memory);
    if (outcome.refusal.ok()) outcome.refusal = OfRank(pump.rank(), "cannot test shared GPU memory", test.Allocate());
    RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &outcome.refusal));
    if (outcome.refusal.ok()) {
      ASSIGN_OR_RETURN(const std::string error, test.Run(join));
      if (!error.empty()) outcome.refusal = absl::UnavailableError(error);
      RETURN_IF_ERROR(AgreeOnFirstError(pump, join, &outcome.refusal));
    }
  }
  if (outcome.refusal.ok()) {
    outcome.memory = std::move(memory);
    return outcome;
  }
  RETURN_IF_ERROR(memory->Disband(pump, join));
  return outcome;
}

}  // namespace starring
