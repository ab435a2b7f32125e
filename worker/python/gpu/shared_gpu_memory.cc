#include "worker/python/gpu/shared_gpu_memory.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// The driver exports whole pages of this size.
constexpr int64_t kPageBytes = int64_t{2} << 20;
// The self-test has so many sums, of so many elements for each rank, which several blocks of a kernel share.
constexpr int kTestRounds = 24;
constexpr int64_t kTestElements = 2048;

// The ranks add arrays of integers, whose sums are exact, and in each round each rank has another part of them. So
// kernels read what kernels of this and of other ranks have written.
class SelfTest {
 public:
  SelfTest(MessagePump& pump, const GpuContext& context, const SharedGpuMemory& memory)
      : pump_(pump), context_(context), memory_(memory), host_(static_cast<size_t>(kTestElements * ranks())) {}
  ~SelfTest() {
    if (stream_ != nullptr) context_.driver().stream_destroy(stream_);
  }

  // *found: why the memory does not serve. Unavailable if it has other contents, else a call has failed. A rank that
  // has found an error goes on, because others wait for it.
  absl::Status Run(const CollectiveOptions& join, absl::Status* found) {
    const CudaDriver& driver = context_.driver();
    absl::Status status =
        driver.StatusOf(driver.stream_create(&stream_, CudaDriver::kStreamNonBlocking), "making a stream");
    host_[0] = static_cast<float>(rank());
    if (status.ok()) status = Put();
    RETURN_IF_ERROR(Barrier(pump_, join));
    if (status.ok()) status = CheckNames();
    for (int round = 0; round < kTestRounds; ++round) {
      RETURN_IF_ERROR(Barrier(pump_, join));
      for (int64_t e = 0; e < std::ssize(host_); ++e) host_[static_cast<size_t>(e)] = PatternOf(rank(), round, e);
      if (status.ok()) status = Put();
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (status.ok()) status = AddPart((rank() + round) % ranks());
      RETURN_IF_ERROR(Barrier(pump_, join));
      if (status.ok()) status = Check(round);
    }
    *found = status;
    return absl::OkStatus();
  }

 private:
  int rank() const { return pump_.rank(); }
  int ranks() const { return pump_.world_size(); }
  int64_t bytes() const { return static_cast<int64_t>(std::span(host_).size_bytes()); }
  static float PatternOf(int rank, int round, int64_t element) {
    return static_cast<float>((element * 31 + rank * 977) % 1021 + round);
  }
  absl::Status Put() { return context_.CopyToDevice(host_.data(), memory_.piece(rank()), bytes(), stream_); }

  // Each piece is the one of its rank.
  absl::Status CheckNames() {
    for (int other = 0; other < ranks(); ++other) {
      float found = -1;
      RETURN_IF_ERROR(context_.CopyToHost(memory_.piece(other), &found, sizeof(found), stream_));
      if (found != static_cast<float>(other)) {
        return absl::UnavailableError(absl::StrCat("rank ", rank(), " finds ", found, " in the GPU memory of rank ",
                                                   other, ", which has written its number there"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddPart(int part) {
    GpuStarSum sum = {.begin = part * kTestElements, .end = (part + 1) * kTestElements, .rank_count = ranks()};
    for (int other = 0; other < ranks(); ++other) sum.places[other] = memory_.piece(other);
    RETURN_IF_ERROR(context_.Sum(ElementType::kFloat32, sum, stream_));
    const CudaDriver& driver = context_.driver();
    return driver.StatusOf(driver.stream_synchronize(stream_), "a sum");
  }

  absl::Status Check(int round) {
    RETURN_IF_ERROR(context_.CopyToHost(memory_.piece(rank()), host_.data(), bytes(), stream_));
    for (int64_t e = 0; e < std::ssize(host_); ++e) {
      float expected = 0;
      for (int other = 0; other < ranks(); ++other) expected += PatternOf(other, round, e);
      const float found = host_[static_cast<size_t>(e)];
      if (found == expected) continue;
      const auto writer = static_cast<int>((e / kTestElements + ranks() - round % ranks()) % ranks());
      return absl::UnavailableError(absl::StrCat("rank ", writer, " has written ", found, " and not ", expected,
                                                 " into the GPU memory of rank ", rank(), ", in round ", round,
                                                 " of a test"));
    }
    return absl::OkStatus();
  }

  MessagePump& pump_;
  const GpuContext& context_;
  const SharedGpuMemory& memory_;
  CudaDriver::Stream stream_ = nullptr;
  std::vector<float> host_;
};

}  // namespace

absl::Status AgreeOnReason(MessagePump& pump, const CollectiveOptions& join, std::string* reason) {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump, *reason, join));
  const auto first = std::ranges::find_if(all, [](const std::string& one) { return !one.empty(); });
  *reason = first == all.end() ? "" : *first;
  return SendTextFromRoot(pump, *reason, join);
}

SharedGpuMemory::SharedGpuMemory(const GpuContext* context, int64_t bytes)
    : context_(*context), bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes) {}

SharedGpuMemory::~SharedGpuMemory() {
  const GpuContext::Scope scope(context_);
  CloseOthers();
  if (may_free_ && own_ != nullptr) context_.Free(own_);
}

absl::StatusOr<std::string> SharedGpuMemory::Allocate() {
  ASSIGN_OR_RETURN(own_, context_.Allocate(bytes_));
  return context_.Export(own_);
}

// Each text is a name in hexadecimal digits, and the length of the piece.
absl::Status SharedGpuMemory::Open(const std::vector<std::string>& names, int rank) {
  pieces_.assign(names.size(), nullptr);
  pieces_[rank] = own_;
  for (int other = 0; other < std::ssize(names); ++other) {
    if (other == rank) continue;
    const std::vector<std::string> parts = absl::StrSplit(names[other], '/');
    if (parts.size() != 2 || parts[1] != absl::StrCat(bytes_)) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has ", bytes_, " bytes of GPU memory, and rank ",
                                                     other, " has ", parts.back(), ": give all ranks the same"));
    }
    ASSIGN_OR_RETURN(pieces_[other], context_.Open(absl::HexStringToBytes(parts[0])), "rank ", rank,
                     " cannot map the GPU memory of rank ", other);
    others_.push_back(pieces_[other]);
  }
  return absl::OkStatus();
}

void SharedGpuMemory::CloseOthers() {
  for (std::byte* const other : others_) context_.Close(other);
  others_.clear();
}

absl::Status SharedGpuMemory::Disband(MessagePump& pump, absl::Duration deadline) {
  CloseOthers();
  // A collective through rank 0 would tell all ranks of a deadline that expired, and break what still works.
  const std::byte closed{1};
  std::vector<MessagePump::Token> received;
  for (int other = 0; other < pump.world_size(); ++other) {
    if (other == pump.rank()) continue;
    received.push_back(pump.Receive(other, ControlTag::kBarrier, 1));
    pump.Send(other, ControlTag::kBarrier, std::span(&closed, 1));
  }
  const auto all = [&] { return std::ranges::all_of(received, [&](auto token) { return pump.IsComplete(token); }); };
  RETURN_IF_ERROR(pump.PumpUntil(all, DeadlineAfter(deadline), ""));
  may_free_ = true;
  return absl::OkStatus();
}

absl::StatusOr<SharedGpuMemory::Outcome> SharedGpuMemory::Meet(MessagePump& pump, const GpuContext* context,
                                                               int64_t bytes, const CollectiveOptions& join) {
  CHECK(2 <= pump.world_size() && pump.world_size() <= kGpuRanksMax) << pump.world_size();
  Outcome outcome;
  auto memory = absl::WrapUnique(new SharedGpuMemory(context, bytes));
  const absl::StatusOr<std::string> name = memory->Allocate();
  // A rank with an error goes on: all must take part in all messages.
  if (!name.ok()) {
    outcome.refusal =
        absl::StrCat("rank ", pump.rank(), " cannot share memory of its GPU: ", std::string(name.status().message()));
  }
  RETURN_IF_ERROR(AgreeOnReason(pump, join, &outcome.refusal));
  if (!outcome.refusal.empty()) {
    memory->may_free_ = true;  // no rank has mapped it
    return outcome;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   GatherTextToRoot(pump, absl::StrCat(absl::BytesToHexString(*name), "/", memory->bytes()), join));
  std::string list = absl::StrJoin(all, "\n");
  RETURN_IF_ERROR(SendTextFromRoot(pump, list, join));
  const std::vector<std::string> names = absl::StrSplit(list, '\n');
  if (std::ssize(names) != pump.world_size()) {
    return absl::InternalError(absl::StrCat(names.size(), " pieces of GPU memory for ", pump.world_size(), " ranks"));
  }
  outcome.refusal = std::string(memory->Open(names, pump.rank()).message());
  RETURN_IF_ERROR(AgreeOnReason(pump, join, &outcome.refusal));
  if (outcome.refusal.empty()) {
    absl::Status found;
    RETURN_IF_ERROR(SelfTest(pump, *context, *memory).Run(join, &found));
    const std::string message(found.message());
    // A rank whose call has failed leaves wrong contents to the others, so its reason comes before theirs.
    if (!found.ok() && !absl::IsUnavailable(found)) outcome.refusal = absl::StrCat("rank ", pump.rank(), ": ", message);
    RETURN_IF_ERROR(AgreeOnReason(pump, join, &outcome.refusal));
    if (outcome.refusal.empty()) {
      outcome.refusal = message;
      RETURN_IF_ERROR(AgreeOnReason(pump, join, &outcome.refusal));
    }
  }
  if (!outcome.refusal.empty()) {
    RETURN_IF_ERROR(memory->Disband(pump, join.deadline));
    return outcome;
  }
  outcome.memory = std::move(memory);
  return outcome;
}

}  // namespace starring
