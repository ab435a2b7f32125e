// The exchange in the order of a GPU's stream: PeerExchange as a StreamExchange.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/transport/collectives.h"
#include "kernels/cuda/cuda_watch.h"
#include "worker/exchange/peer/gpu/gpu_flags.h"
#include "worker/exchange/peer/gpu/gpu_flags_trial.h"
#include "worker/exchange/peer/gpu/gpu_slice_owner.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {
namespace {

// No bell rings when a GPU has passed an event. The steps behind it are queued, so they do not wait for the host.
constexpr std::chrono::microseconds kSleepMax{200};

// How long a GPU that was released may take to drain.
constexpr std::chrono::seconds kDrainDeadline{5};

// A rank that released this one's GPU has given up, and its notice is on the way.
constexpr absl::Duration kNoticeDeadline = absl::Seconds(5);

}  // namespace

// The reason is the same on all ranks. REQUIRES: the ranks share GPU memory.
absl::Status PeerExchange::CreateGpuFlags(HostMemory* host, const CollectiveOptions& join) {
  round_bytes_ = BytesOfRound();
  GpuFlags::Options options = {.device = gpu_,
                               .rank = job_.rank,
                               .rank_count = job_.world_size,
                               .is_ring = way_.algorithm == Algorithm::kRing,
                               .memory = host->writable_piece(0)};
  for (int bucket = 0; bucket < job_.buckets.bucket_count(); ++bucket) {
    std::vector<bool>& owners = options.owners.emplace_back();
    for (int rank = 0; rank < job_.world_size; ++rank) {
      owners.push_back(!OwnersOf(way_).SliceOf(job_.buckets.sum(bucket), rank).empty());
    }
  }
  auto flags = GpuFlags::Create(std::move(options));
  absl::Status why = flags.status();
  const auto agree = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!why.ok()) {
      why = absl::Status(why.code(), absl::StrCat("rank ", job_.rank, ": ", std::string(why.message())));
    }
    return AgreeOnFirstError(pump_, join, &why);
  };
  RETURN_IF_ERROR(agree());
  if (why.ok()) {
    gpu_flags_ = *std::move(flags);
    RETURN_IF_ERROR(TryGpuFlags(pump_, gpu_, *gpu_memory_, gpu_flags_.get(), join, &why));
    RETURN_IF_ERROR(agree());
  }
  if (why.ok()) return absl::OkStatus();
  pump_.PeersKnow();
  return absl::InvalidArgumentError(
      absl::StrCat("--gpu_waits=graph: ", std::string(why.message()), ": give --gpu_waits=host"));
}

CudaOptimizerScalars PeerExchange::ScalarsOf(int64_t round) const { return gpu_owner_->ScalarsOf(round); }

// Without the lock: where streams are synchronous, as those of an emulated GPU may be, the call waits for other ranks.
absl::Status PeerExchange::EnqueueBucket(CudaStream* stream, int slot, int bucket, const CudaStepValues* values) {
  NoteStream(stream);
  if (way_.algorithm == Algorithm::kRing) {
    return gpu_owner_->EnqueueHops(gpu_flags_.get(), stream, slot, bucket, values);
  }
  RETURN_IF_ERROR(gpu_flags_->Arrive(stream, slot, bucket));
  if (!gpu_flags_->IsOwner(bucket)) return absl::OkStatus();
  RETURN_IF_ERROR(gpu_flags_->AwaitArrivals(stream, slot, bucket));
  return gpu_owner_->EnqueueUpdateFromAll(gpu_flags_.get(), stream, slot, bucket, values);
}

void PeerExchange::NoteStream(CudaStream* stream) {
  if (std::ranges::find(waiting_streams_, stream) == waiting_streams_.end()) waiting_streams_.push_back(stream);
}

absl::Status PeerExchange::EnqueueEnd(CudaStream* stream, int slot) {
  NoteStream(stream);
  if (way_.algorithm == Algorithm::kRing) return gpu_flags_->AwaitRight(stream, slot);
  return gpu_flags_->AwaitUpdates(stream, slot, 0, gpu_flags_->trial_bucket());
}

std::optional<StreamExchange::NonFinite> PeerExchange::FindNonFinite(int64_t round) const {
  return gpu_flags_->FindNonFinite(SlotOf(round));
}

// The bytes that messages would have. In a star a rank sends all slices but its own, and its own to all; in a ring
// twice all chunks but one, of which one is its own.
PeerExchange::RoundBytes PeerExchange::BytesOfRound() const {
  const auto slice = [this](int bucket, int rank) {
    int64_t elements = 0;
    for (const ElementRange& range : OwnersOf(way_).SliceOf(job_.buckets.sum(bucket), rank)) elements += range.size();
    return elements;
  };
  const RingSchedule ring = {.rank = job_.rank, .rank_count = job_.world_size};
  const bool is_ring = way_.algorithm == Algorithm::kRing;
  RoundBytes bytes;
  for (int bucket = 0; bucket < job_.buckets.bucket_count(); ++bucket) {
    const int64_t all = job_.buckets.bucket(bucket).size();
    const int64_t own = slice(bucket, job_.rank);
    const int64_t in_star = all + own * (job_.world_size - 2);
    bytes.sent += kFloatBytes * (is_ring ? 2 * all - own - slice(bucket, ring.right()) : in_star);
    bytes.received += kFloatBytes * (is_ring ? 2 * all - own - slice(bucket, ring.Left(1)) : in_star);
  }
  return bytes;
}

// Once a round, though a step may wait for its round twice: the roll call compares the counts of ranks.
void PeerExchange::CountRound(int64_t round) {
  if (round <= last_round_) return;
  CHECK_EQ(round, last_round_ + 1) << "a round that nobody has awaited";
  last_round_ = round;
  pump_.CountCall();
  earlier_.bytes_sent += round_bytes_.sent;
  earlier_.bytes_received += round_bytes_.received;
}

absl::Status PeerExchange::AwaitRound(int64_t round, CudaEvent* done) {
  TrainerDrives drive(*this);
  if (!pump_.failure().ok()) return pump_.failure();
  CountRound(round);
  absl::Status gpu;
  const auto is_over = [&] {
    const absl::StatusOr<bool> passed = done->HasPassed();
    gpu.Update(passed.status());
    return !passed.ok() || *passed;
  };
  RETURN_IF_ERROR(WaitForRound(round, is_over));
  if (!gpu.ok()) {
    // The cause may be a rank that has died, whose memory this GPU maps.
    RETURN_IF_ERROR(pump_.FindMissing().status());
    return Fail(gpu);
  }
  if (gpu_flags_->is_void()) {
    (void)pump_.PumpUntil([] { return false; }, DeadlineAfter(kNoticeDeadline), "");
    if (!pump_.failure().ok()) return pump_.failure();
    return Fail(absl::UnavailableError("another rank has given up, and has not said why"));
  }
  oldest_round_ = std::max<int64_t>(oldest_round_, round + 1);
  return absl::OkStatus();
}

absl::Status PeerExchange::WaitForRound(int64_t round, absl::FunctionRef<bool()> done) {
  const std::string step = absl::StrCat("step ", round);
  transport_->BeginLooking();
  // Others must not take a rank whose own GPU is slow for one that waits for them.
  pump_.set_is_busy([this] { return LatePeers().empty(); });
  absl::Status status = pump_.PumpUntil(done, DeadlineAfter(job_.exchange_deadline), step, kSleepMax);
  // As long as the watch of other calls waits for a GPU. A byte that has just come must not make this one's the fault.
  if (absl::IsDeadlineExceeded(status) && LatePeers().empty()) {
    status = pump_.PumpUntil(done, DeadlineAfter(job_.exchange_deadline / 8), step, kSleepMax);
  }
  pump_.set_is_busy(nullptr);
  transport_->EndLooking();
  if (!absl::IsDeadlineExceeded(status)) return status;
  // The fault is this rank's GPU, unless it waits for others.
  const GpuFlags::Lag lag = gpu_flags_->FindLag();
  const std::string late = RanksOfLag(lag);
  if (late.empty()) {
    if (gpu_->watch() != nullptr) gpu_->watch()->Report("waiting for an event");
    return Fail(absl::DeadlineExceededError(
        absl::StrCat(step, ": the GPU has not come to its end within ", absl::FormatDuration(job_.exchange_deadline))));
  }
  const std::string bucket = absl::StrCat("step ", RoundOfLag(lag), ", bucket ", lag.bucket);
  // Processes whose GPUs hang answer.
  ASSIGN_OR_RETURN(const std::string missing,
                   pump_.FindMissing(absl::StrCat("all processes answer: look at the GPU of ", late)));
  return Fail(absl::DeadlineExceededError(
      absl::StrCat(bucket, " did not come within ", absl::FormatDuration(job_.exchange_deadline),
                   " (oldest in flight: ", bucket, "): the GPU waits for that of ", late, ": ", missing)));
}

// "rank 1", if the GPU waits for other ranks alone; else empty.
std::string PeerExchange::RanksOfLag(const GpuFlags::Lag& lag) const {
  if (lag.ranks.empty() || std::ranges::find(lag.ranks, job_.rank) != lag.ranks.end()) return "";
  return absl::StrCat(lag.ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(lag.ranks, ", "));
}

// The GPU is in one of the rounds that are enqueued, of which there are no more than slots.
int64_t PeerExchange::RoundOfLag(const GpuFlags::Lag& lag) const {
  const int64_t oldest = oldest_round_;
  return oldest + (lag.slot - SlotOf(oldest) + kSlots) % kSlots;
}

// The ranks for which this rank's GPU waits, as "rank 1 (step 17, bucket 3)"; empty: it waits for none. Any thread.
std::string PeerExchange::LatePeers() const {
  const GpuFlags::Lag lag = gpu_flags_->FindLag();
  const std::string ranks = RanksOfLag(lag);
  return ranks.empty() ? "" : absl::StrCat(ranks, " (step ", RoundOfLag(lag), ", bucket ", lag.bucket, ")");
}

// False: the GPU still waits. After an error in backward, branches may wait that the device's stream has not joined.
bool PeerExchange::DrainGpu() {
  gpu_flags_->SayVoid();
  NoteStream(gpu_->stream());
  std::vector<std::unique_ptr<CudaEvent>> ends;
  for (CudaStream* const stream : waiting_streams_) {
    absl::StatusOr<std::unique_ptr<CudaEvent>> end = gpu_->CreateEvent();
    if (!end.ok() || !stream->Record(end->get()).ok()) return false;
    ends.push_back(*std::move(end));
  }
  const auto deadline = std::chrono::steady_clock::now() + kDrainDeadline;
  while (!ends.empty()) {
    const absl::StatusOr<bool> passed = ends.back()->HasPassed();
    if (!passed.ok()) return false;
    if (*passed) {
      ends.pop_back();
      continue;
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
    gpu_flags_->Release();
    std::this_thread::sleep_for(GpuFlags::kReleasePause);
  }
  return true;
}

}  // namespace starring
