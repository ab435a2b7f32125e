#include "worker/python/gpu/reduce_gpu.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// An operation's number: that of the sum, and a code.
constexpr int64_t kCodes = 64;
// For a GPU that still works when the group has failed. Arrivals wait for streams of the process, and perhaps for ever.
// They only read arrays.
constexpr std::chrono::milliseconds kWorkPatience{5000}, kArrivalPatience{500};

// Numbers of sums that are in flight together have tags of their own. There are fewer than this (kReductionsMax).
constexpr int64_t kTags = 4096;

int64_t Aligned(int64_t bytes) { return (bytes + kGpuPlaceAlignment - 1) / kGpuPlaceAlignment * kGpuPlaceAlignment; }

// Where the partial sums of an array at `place` are.
std::byte* PartialAt(std::byte* place, const ReductionHead& head) {
  return head.type == ElementType::kFloat32 ? place : place + Aligned(head.bytes());
}

CudaDriver::Event ArrivalOf(const Reduction& reduction) { return static_cast<CudaDriver::Event>(reduction.arrival); }

}  // namespace

absl::StatusOr<std::unique_ptr<ReduceGpu>> ReduceGpu::Create(Options options) {
  auto machine = absl::WrapUnique(new ReduceGpu(std::move(options)));
  for (auto* const queue : {&machine->arriving_, &machine->working_}) {
    ASSIGN_OR_RETURN(*queue, GpuQueue::Create(machine->options_.context, machine->options_.ring));
  }
  return machine;
}

ReduceGpu::ReduceGpu(Options options) : ReduceMachine(options.transport), options_(std::move(options)) {}

ReduceGpu::~ReduceGpu() {
  Stop();
  const GpuContext::Scope scope(*options_.context);
  for (const auto& [number, sum] : sums_) {
    if (sum.offset < 0) options_.context->DestroyEvent(ArrivalOf(sum.reduction));
  }
}

void ReduceGpu::Stop() {
  for (const auto& [queue, patience] : {std::pair(&working_, kWorkPatience), std::pair(&arriving_, kArrivalPatience)}) {
    if (*queue == nullptr || (*queue)->Stop(patience)) continue;
    static_cast<void>(queue->release());
  }
}

std::string ReduceGpu::OwnDelay() const {
  for (const auto& [number, sum] : sums_) {
    if (!sum.is_busy) continue;
    return absl::StrCat("the GPU of rank ", rank(), " has not ended its work for ",
                        DescribeReduction(sum.reduction.head));
  }
  return "";
}

bool ReduceGpu::IsComputing() const { return !sums_.empty() && sums_.begin()->second.stage < 0; }

int64_t ReduceGpu::PlaceBytes(const ReductionHead& head) const {
  const bool has_partial = !is_star() && head.type != ElementType::kFloat32;
  return Aligned(head.bytes()) + (has_partial ? Aligned(head.count * static_cast<int64_t>(sizeof(float))) : 0);
}

absl::Status ReduceGpu::CheckSize(const ReductionHead& head) const {
  const int64_t bytes = PlaceBytes(head);
  if (bytes <= options_.memory->bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a sum of ", head.count, " elements of ", ElementTypeName(head.type),
                                                 " takes ", bytes, " bytes of GPU memory, and the group has ",
                                                 options_.memory->bytes(), ": open it with more"));
}

void ReduceGpu::Start(const Reduction& reduction) {
  if (reduction.head.count == 0) {
    ++contributed_count_;
    return options_.context->DestroyEvent(ArrivalOf(reduction));
  }
  Expect(reduction.number, 1);
  Sum& sum = sums_[reduction.number];
  sum.reduction = reduction;
  sum.bytes = PlaceBytes(reduction.head);
  sum.peers.resize(worker_count());
  for (int i = 1; i < worker_count() && is_star(); ++i) {
    for (int64_t stage = 0; stage <= work_count(); ++stage) sum.received.push_back({(rank() + i) % worker_count(), {}});
  }
  if (!is_star()) {
    for (int64_t stage = 0; stage < work_count(); ++stage) sum.received.push_back({left(), {}});
    sum.received.push_back({right(), {}});
  }
  sum.missing = std::ssize(sum.received);
  const int tag = kFirstElementTag + static_cast<int>(reduction.number % kTags);
  for (int64_t i = 0; i < std::ssize(sum.received); ++i) {
    Received& received = sum.received[i];
    transport().PostReceive(received.from, tag, std::as_writable_bytes(std::span(&received.note, 1)),
                            TokenOf(sum, static_cast<int64_t>(Code::kReceived) + i));
  }
  unplaced_.push_back(reduction.number);
  CopyIn();
}

// The first gap that is long enough. Sums get places in their order, so the oldest one that has not ended has a place
// on every rank, or gets it when earlier ones end.
bool ReduceGpu::FindPlace(Sum& sum) {
  int64_t begin = 0;
  for (const auto& [offset, end] : used_) {
    if (offset - begin >= sum.bytes) break;
    begin = end;
  }
  if (begin + sum.bytes > options_.memory->bytes()) return false;
  used_[begin] = begin + sum.bytes;
  sum.offset = begin;
  return true;
}

void ReduceGpu::CopyIn() {
  const GpuContext& gpu = *options_.context;
  while (!unplaced_.empty() && FindPlace(sums_.at(unplaced_.front()))) {
    Sum& sum = sums_.at(unplaced_.front());
    unplaced_.pop_front();
    absl::Status status = gpu.Wait(ArrivalOf(sum.reduction), arriving_->stream());
    gpu.DestroyEvent(ArrivalOf(sum.reduction));
    if (status.ok()) {
      status = gpu.CopyOnDevice(sum.reduction.data, OwnPlace(sum), sum.reduction.head.bytes(), arriving_->stream());
    }
    if (!status.ok()) return Fail(status);
    ++copy_count_;
    AwaitQueue(*arriving_, sum, Code::kCopiedIn);
  }
}

void ReduceGpu::AwaitQueue(GpuQueue& queue, const Sum& sum, Code code) {
  options_.transport->PostWait(queue.finished(), queue.Follow(), TokenOf(sum, static_cast<int64_t>(code)));
}

Transport::Token ReduceGpu::TokenOf(const Sum& sum, int64_t code) {
  return {.poster = this, .operation = static_cast<uint64_t>(sum.reduction.number * kCodes + code)};
}

void ReduceGpu::Advance(uint64_t operation) {
  for (const GpuQueue* const queue : {arriving_.get(), working_.get()}) {
    const absl::Status status = queue->status();
    if (!status.ok()) return Fail(Annotate(status, absl::StrCat("rank ", rank())));
  }
  const auto found = sums_.find(static_cast<int64_t>(operation) / kCodes);
  CHECK(found != sums_.end()) << operation;
  Sum& sum = found->second;
  const auto code = static_cast<int64_t>(operation) % kCodes;
  switch (static_cast<Code>(std::min(code, static_cast<int64_t>(Code::kReceived)))) {
    case Code::kCopiedIn:
      ++contributed_count_;
      ReachStage(sum);
      break;
    case Code::kWorked:
      sum.is_busy = false;
      ReachStage(sum);
      break;
    case Code::kCopiedOut:
      sum.is_busy = false;
      sum.is_copied = true;
      break;
    case Code::kSent:
      --sum.missing;
      break;
    case Code::kReceived:
      Hear(sum, sum.received[static_cast<size_t>(code - static_cast<int64_t>(Code::kReceived))]);
      break;
  }
  GoOn(sum);
  EndIfDone(sum);
}

void ReduceGpu::Hear(Sum& sum, const Received& received) {
  const auto& [hash, offset, stage] = received.note;
  // The heads' comparison finds it, on this rank or on another one.
  if (hash != HashOf(sum.reduction.head)) return;
  if (offset < 0 || offset > options_.memory->bytes() - sum.bytes || offset % kGpuPlaceAlignment != 0 || stage < 0 ||
      stage > work_count()) {
    return Fail(absl::InternalError(absl::StrCat("rank ", received.from, " says that its place begins at ", offset,
                                                 " and is at stage ", stage, ": all ranks must run the same build")));
  }
  --sum.missing;
  Peer& peer = sum.peers[received.from];
  peer.stage = std::max(peer.stage, stage);
  peer.offset = offset;
}

void ReduceGpu::ReachStage(Sum& sum) {
  ++sum.stage;
  if (!is_star()) return Tell(sum, sum.stage < work_count() ? right() : left());
  for (int i = 1; i < worker_count(); ++i) Tell(sum, (rank() + i) % worker_count());
}

void ReduceGpu::Tell(Sum& sum, int to) {
  const Note& note =
      sum.sent.emplace_back(Note{.hash = HashOf(sum.reduction.head), .offset = sum.offset, .stage = sum.stage});
  ++sum.missing;
  const int tag = kFirstElementTag + static_cast<int>(sum.reduction.number % kTags);
  transport().PostSend(to, tag, std::as_bytes(std::span(&note, 1)), TokenOf(sum, static_cast<int64_t>(Code::kSent)));
}

bool ReduceGpu::MayWork(const Sum& sum) const {
  if (!is_star()) return sum.peers[left()].stage >= sum.stage;
  for (int other = 0; other < worker_count(); ++other) {
    if (other != rank() && sum.peers[other].stage < 0) return false;
  }
  return true;
}

bool ReduceGpu::IsSummed(const Sum& sum) const {
  if (!is_star()) return true;
  for (int other = 0; other < worker_count(); ++other) {
    if (other != rank() && sum.peers[other].stage < work_count()) return false;
  }
  return true;
}

void ReduceGpu::GoOn(Sum& sum) {
  while (status().ok() && sum.stage >= 0 && !sum.is_busy && !sum.is_copied) {
    if (sum.stage == work_count()) {
      if (!IsSummed(sum)) return;
      const absl::Status status = options_.context->CopyOnDevice(OwnPlace(sum), sum.reduction.data,
                                                                 sum.reduction.head.bytes(), working_->stream());
      if (!status.ok()) return Fail(status);
      ++copy_count_;
      sum.is_busy = true;
      return AwaitQueue(*working_, sum, Code::kCopiedOut);
    }
    if (!MayWork(sum)) return;
    const absl::StatusOr<bool> began = BeginWork(sum);
    if (!began.ok()) return Fail(began.status());
    if (*began) {
      sum.is_busy = true;
      return AwaitQueue(*working_, sum, Code::kWorked);
    }
    ReachStage(sum);
  }
}

absl::StatusOr<bool> ReduceGpu::BeginWork(const Sum& sum) { return is_star() ? BeginStarSum(sum) : BeginHop(sum); }

absl::StatusOr<bool> ReduceGpu::BeginStarSum(const Sum& sum) {
  const ReductionHead& head = sum.reduction.head;
  const ElementRange slice = SliceOf(sum.reduction, rank(), worker_count());
  if (slice.size() == 0) return false;
  GpuStarSum args = {.begin = slice.begin, .end = slice.end, .rank_count = worker_count(), .divisor = head.divisor};
  for (int other = 0; other < worker_count(); ++other) {
    args.places[other] = other == rank() ? OwnPlace(sum) : PlaceOf(sum.peers[other].offset, other);
  }
  RETURN_IF_ERROR(options_.context->Sum(head.type, args, working_->stream()));
  return true;
}

absl::StatusOr<bool> ReduceGpu::BeginHop(const Sum& sum) {
  const ReductionHead& head = sum.reduction.head;
  const int64_t ranks = worker_count(), hops = ranks - 1;
  std::byte* const from = PlaceOf(sum.peers[left()].offset, left());
  std::byte* const own = OwnPlace(sum);
  if (sum.stage >= hops) {
    const GpuRingCopy copy = {
        .chunk = ChunkOf(sum, (rank() - 1 - (sum.stage - hops) + ranks) % ranks), .left = from, .own = own};
    if (copy.chunk.count == 0) return false;
    RETURN_IF_ERROR(options_.context->Copy(head.type, copy, working_->stream()));
    return true;
  }
  GpuRingAdd add = {
      .chunk = ChunkOf(sum, (rank() - 2 - sum.stage + 2 * ranks) % ranks), .own = own, .divisor = head.divisor};
  if (add.chunk.count == 0) return false;
  if (sum.stage == 0) {
    add.left_elements = from;
  } else {
    add.left_partial = reinterpret_cast<const float*>(PartialAt(from, head));
  }
  if (sum.stage < hops - 1) add.partial = reinterpret_cast<float*>(PartialAt(own, head));
  RETURN_IF_ERROR(options_.context->Add(head.type, add, working_->stream()));
  return true;
}

GpuRingChunk ReduceGpu::ChunkOf(const Sum& sum, int64_t chunk) const {
  const int ranks = worker_count();
  const int64_t block = ReductionBlockElements(ranks), of_whole = ChunkElements(ranks);
  const int64_t count = sum.reduction.head.count, blocks = count / block;
  const ElementRange last = RingChunk({blocks * block, count}, static_cast<int>(chunk), ranks);
  static_assert(std::has_single_bit(static_cast<uint64_t>(ChunkElements(2))));
  return {.count = blocks * of_whole + last.size(),
          .whole_count = blocks * of_whole,
          .block_elements = block,
          .first = chunk * of_whole,
          .last_begin = last.begin,
          .shift = std::countr_zero(static_cast<uint64_t>(of_whole))};
}

// All notes have come, so no rank reads or writes the place any more.
void ReduceGpu::EndIfDone(Sum& sum) {
  if (!status().ok() || !sum.is_copied || sum.missing > 0) return;
  const int64_t number = sum.reduction.number;
  used_.erase(sum.offset);
  sums_.erase(number);
  Complete(number);
  CopyIn();
}

}  // namespace starring
