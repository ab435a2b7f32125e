// How the ranks decide which way their gradients travel (Algorithm::kFastest), and whether they share memory.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"
#include "common/transport/collectives.h"
#include "worker/exchange/peer/cuda_aware/cuda_slice_owner.h"
#include "worker/exchange/peer/gpu/gpu_memory.h"
#include "worker/exchange/peer/gpu/gpu_slice_owner.h"
#include "worker/exchange/peer/gpu_ring_machine.h"
#include "worker/exchange/peer/machine_trial.h"
#include "worker/exchange/peer/nccl/nccl_transport.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/peer/ring_machine.h"
#include "worker/exchange/peer/star_machine.h"

namespace starring {
namespace {

// The elements exchanged in a trial: enough for bandwidth to count, few enough for seven rounds of each way at 200
// Mbit/s in two seconds.
constexpr int64_t kTrialElementsMax = 262'144;

// The number of buckets of the least length, which is one reduction block.
int MaxBucketCount(int64_t element_count, int world_size) {
  const int64_t block = ReductionBlockElements(world_size);
  return static_cast<int>(std::min<int64_t>((element_count + block - 1) / block, kBucketCountMax));
}

}  // namespace

// The reason is the same on all ranks.
absl::Status PeerExchange::RefuseSharing(const std::string& why) {
  pump_.PeersKnow();
  return absl::InvalidArgumentError(
      absl::StrCat(shares_gpu_memory_ ? "--same_host=gpu_memory: " : "--same_host=shared_memory: ", why,
                   ": start all ranks on one host, or give --same_host=",
                   shares_gpu_memory_ ? "auto, which sends arrays through memory of the host" : "socket"));
}

int64_t PeerExchange::SharedGpuBytes(const OptimizerConfig& optimizer, int64_t element_count, int world_size) {
  return GpuMemory::Bytes(element_count) + GpuSliceOwner::StateBytes(optimizer, element_count, world_size);
}

int64_t PeerExchange::NcclBytes(const OptimizerConfig& optimizer, int64_t element_count) {
  const int64_t sums = element_count * static_cast<int64_t>(sizeof(float));  // the machine's
  return CudaSliceOwner::Bytes(optimizer, {.element_count = element_count, .owned_elements = element_count}) + sums +
         NcclTransport::kBytesEstimate;
}

int64_t PeerExchange::CudaAwareBytes(Algorithm algorithm, const OptimizerConfig& optimizer, const BucketMap& buckets,
                                     int rank) {
  if (algorithm == Algorithm::kFastest) {
    return std::max(CudaAwareBytes(Algorithm::kRing, optimizer, buckets, rank),
                    CudaAwareBytes(Algorithm::kDirect, optimizer, buckets, rank));
  }
  const bool is_ring = algorithm == Algorithm::kRing;
  CHECK(is_ring || algorithm == Algorithm::kDirect);
  const OwnerMap owners =
      is_ring ? OwnerMap::SplitChunks(buckets.world_size()) : OwnerMap::JoinedChunks(buckets.world_size());
  int64_t owned = 0;
  for (int b = 0; b < buckets.bucket_count(); ++b) {
    for (const ElementRange& range : owners.SliceOf(buckets.sum(b), rank)) owned += range.size();
  }
  return CudaSliceOwner::Bytes(optimizer, {.element_count = buckets.element_count(),
                                           .owned_elements = owned,
                                           .reserved_elements = is_ring ? RingMachine::GpuElements(buckets)
                                                                        : StarMachine::GpuElements(buckets)});
}

// *error: the same on all ranks, which have all owners or none.
absl::Status PeerExchange::CreateGpuOwner(HostBoard* board, const CollectiveOptions& join, absl::Status* error) {
  std::vector<std::vector<ElementRows>> chunks;
  for (int rank = 0; rank < job_.world_size && way_.algorithm == Algorithm::kRing; ++rank) {
    std::vector<ElementRows>& of_rank = chunks.emplace_back();
    for (const auto& slice : SlicesOf(way_, job_.buckets, rank)) of_rank.push_back(ElementRows::Of(slice));
  }
  auto owner = GpuSliceOwner::Create({.device = gpu_,
                                      .memory = gpu_memory_.get(),
                                      .rank = job_.rank,
                                      .order = job_.sum_order,
                                      .owned = OwnerOptions(),
                                      .chunks = std::move(chunks),
                                      .ring = [board, rank = job_.rank] { board->Ring(rank); }});
  if (!owner.ok()) {
    *error = absl::Status(owner.status().code(),
                          absl::StrCat("rank ", job_.rank, ": ", std::string(owner.status().message())));
  }
  RETURN_IF_ERROR(AgreeOnFirstError(pump_, join, error));
  if (!error->ok()) return absl::OkStatus();
  ring_hops_ = owner->get();
  gpu_owner_ = owner->get();
  owner_ = *std::move(owner);
  own_parameters_ = owner_->own_parameters();
  return absl::OkStatus();
}

// The board is in memory of the host, and the arrays in that of the GPUs. Too little memory of a GPU is no error: then
// nothing is shared when this returns.
absl::Status PeerExchange::ShareGpuMemory() {
  const CollectiveOptions join = {.what = "sharing GPU memory with the other ranks", .deadline = job_.join_deadline};
  const int bucket_count = job_.buckets.bucket_count();
  const bool is_ring = way_.algorithm == Algorithm::kRing;
  const int64_t flag_bytes = gpus_wait_ ? GpuFlags::Bytes(bucket_count, job_.world_size, is_ring) : 0;
  ASSIGN_OR_RETURN(
      HostMemory::Outcome board,
      HostMemory::Meet(
          pump_,
          {.bytes = [flag_bytes](int rank) { return rank == 0 ? flag_bytes : 0; },
           .bucket_count = is_ring ? GpuRingMachine::BoardBuckets(bucket_count, job_.world_size) : bucket_count,
           .layout = "GPU memory"},
          join));
  if (board.memory == nullptr) return RefuseSharing(board.refusal);
  ASSIGN_OR_RETURN(GpuMemory::Outcome outcome, GpuMemory::Meet(pump_, gpu_, job_.layout.element_count(), join));
  absl::Status why = outcome.refusal;
  if (outcome.memory != nullptr) {
    gpu_memory_ = std::move(outcome.memory);
    way_.shares_memory = true;
    way_.is_on_gpus = true;
    RETURN_IF_ERROR(CreateGpuOwner(board.memory->board(), join, &why));
    if (!why.ok()) {
      way_.shares_memory = false;
      way_.is_on_gpus = false;
      RETURN_IF_ERROR(gpu_memory_->Disband(pump_, join));
      gpu_memory_ = nullptr;
    }
  }
  if (!why.ok()) {
    if (!absl::IsResourceExhausted(why)) return RefuseSharing(std::string(why.message()));
    not_on_gpus_ = std::string(why.message());
    if (pump_.rank() == 0 && say_) {
      say_(absl::StrCat("--same_host=gpu_memory: arrays go through memory of the host: ", not_on_gpus_));
    }
    return absl::OkStatus();
  }
  memory_ = std::move(board.memory);
  if (gpus_wait_) RETURN_IF_ERROR(CreateGpuFlags(memory_.get(), join));
  transport_->Attach(memory_->board());
  for (int rank = 0; rank < job_.world_size; ++rank) arrays_.gradients.emplace_back(gpu_memory_->gradients(rank));
  arrays_.own_gradients = {gpu_memory_->gradients(job_.rank)};
  arrays_.parameters = gpu_memory_->parameters(job_.rank);
  return absl::OkStatus();
}

// Why GPU memory was not tried. The answer is this rank's, of its own GPU.
std::string PeerExchange::NotTriedOnGpus() const {
  const CudaDeviceInfo& gpu = gpu_->info();
  if (!gpu.has_ipc) return absl::StrCat("GPU ", gpu.ordinal, " has no memory that processes share (CUDA IPC)");
  // Ranks take GPUs in the order of their numbers.
  if (0 <= gpu.unreached_gpu && gpu.unreached_gpu < job_.world_size) {
    return absl::StrCat("GPU ", gpu.ordinal, " does not reach that of GPU ", gpu.unreached_gpu);
  }
  return "not tried by itself until real GPUs have run it, --same_host=gpu_memory asks for it";
}

// For people: which way arrays travel inside the host, and why no better one.
std::string PeerExchange::SameHostReason() const {
  if (way_.is_on_gpus) return "GPU memory: asked for";
  if (sharing_ == HostSharing::kRequired) return "shared memory: asked for";
  std::string reason;
  if (!not_on_gpus_.empty()) {
    reason = absl::StrCat("GPU memory: ", not_on_gpus_, "; ");
  } else if (sharing_ == HostSharing::kNever) {
    return "";
  } else if (gpu_ != nullptr && way_.algorithm != Algorithm::kDedicated) {
    reason = absl::StrCat("GPU memory: ", NotTriedOnGpus(), "; ");
  }
  if (memory_ != nullptr) return absl::StrCat(reason, "shared memory: all are on one host");
  if (!not_shared_.empty()) return absl::StrCat(reason, "messages: no shared memory: ", not_shared_);
  return choice_.has_value() ? absl::StrCat(reason, "messages: ", choice_->reason) : "";
}

// The outcome is the same on all ranks, so they agree on what follows.
absl::Status PeerExchange::ShareMemory() {
  HostSharing sharing = sharing_;
  if (shares_gpu_memory_ && pump_.world_size() > 1) {
    RETURN_IF_ERROR(ShareGpuMemory());
    if (way_.is_on_gpus) return absl::OkStatus();
    sharing = HostSharing::kIfPossible;
  }
  if (sharing == HostSharing::kNever || way_.algorithm == Algorithm::kAllreduce || pump_.world_size() == 1) {
    return absl::OkStatus();
  }
  const bool has_servers = way_.algorithm == Algorithm::kDedicated;
  const CollectiveOptions join = {
      .what = "sharing memory with the other processes", .deadline = job_.join_deadline, .with_servers = has_servers};
  // As many buckets as --bucket_bytes=auto, or anything else, may cut later (UseBuckets): one for each block. Servers
  // keep to those of the start.
  const HostArraysShape shape = {.element_count = job_.layout.element_count(),
                                 .bucket_count = has_servers
                                                     ? job_.buckets.bucket_count()
                                                     : MaxBucketCount(job_.layout.element_count(), job_.world_size),
                                 .micro_batches = job_.micro_batches,
                                 .worker_count = job_.world_size};
  HostMemory::Options options = HostArraysMemory(shape);
  const bool is_ring = way_.algorithm == Algorithm::kRing;
  if (is_ring) {
    const int64_t bytes = RingMachine::MemoryBytes(job_.world_size);
    options = {.bytes = [bytes](int) { return bytes; }, .layout = "ring"};
  }
  ASSIGN_OR_RETURN(HostMemory::Outcome outcome, HostMemory::Meet(pump_, options, join));
  if (outcome.memory == nullptr) {
    not_shared_ = std::move(outcome.refusal);
    return sharing == HostSharing::kIfPossible ? absl::OkStatus() : RefuseSharing(not_shared_);
  }
  memory_ = std::move(outcome.memory);
  transport_->Attach(memory_->board());
  if (is_ring) return absl::OkStatus();
  arrays_ = DivideHostMemory(shape, job_.rank, *memory_);
  way_.shares_memory = way_.algorithm != Algorithm::kFastest;
  return absl::OkStatus();
}

// Every rank times every way; rank 0's times decide, and rank 0 tells the others.
absl::Status PeerExchange::ChooseFastest() {
  if (way_.algorithm != Algorithm::kFastest) return absl::OkStatus();
  std::vector<std::pair<std::string, Way>> ways;
  if (job_.sum_order == SumOrder::kChain) ways.emplace_back("ring", Way{.algorithm = Algorithm::kRing});
  ways.emplace_back("star", Way{.algorithm = Algorithm::kDirect});
  if (memory_ != nullptr) {
    ways.emplace_back("star in shared memory", Way{.algorithm = Algorithm::kDirect, .shares_memory = true});
  }
  std::string text = "0\tone worker exchanges nothing";
  if (pump_.world_size() > 1) {
    ASSIGN_OR_RETURN(text, TimeWays(ways));
  }
  const CollectiveOptions join = {.what = "the choice of --sync", .deadline = job_.join_deadline};
  // All ranks have ended their trials, so no count is in use; and a rank counts again only after this message.
  RETURN_IF_ERROR(Barrier(pump_, join));
  trial_ = nullptr;
  if (memory_ != nullptr && pump_.rank() == 0) memory_->board()->Clear();
  RETURN_IF_ERROR(SendTextFromRoot(pump_, text, join));
  const size_t tab = text.find('\t');
  size_t fastest = 0;
  if (tab == std::string::npos || !absl::SimpleAtoi(text.substr(0, tab), &fastest) || fastest >= ways.size()) {
    return Fail(absl::InternalError(absl::StrCat("rank 0 chooses \"", text, "\": all ranks must run the same build")));
  }
  way_ = ways[fastest].second;
  choice_ = ExchangeChoice{.sync = way_.algorithm == Algorithm::kRing ? Sync::kRing : Sync::kStar,
                           .reason = text.substr(tab + 1)};
  if (pump_.rank() == 0 && say_) say_(absl::StrCat("--sync=auto: ", ways[fastest].first, ": ", choice_->reason));
  // Gives back the shared memory if it was not chosen.
  if (!way_.shares_memory && memory_ != nullptr) {
    transport_->Detach();
    arrays_ = {};
    memory_ = nullptr;
  }
  return absl::OkStatus();
}

// "NUMBER<tab>REASON": the number of the fastest way.
absl::StatusOr<std::string> PeerExchange::TimeWays(const std::vector<std::pair<std::string, Way>>& ways) {
  std::vector<double> seconds;
  std::string times;
  for (const auto& [name, way] : ways) {
    ASSIGN_OR_RETURN(const double taken, TimeWay(way));
    seconds.push_back(taken);
    absl::StrAppendFormat(&times, "%s%s %.3f ms", times.empty() ? "" : ", ", name, taken * 1e3);
  }
  const int64_t timed = std::min(job_.layout.element_count(), kTrialElementsMax);
  if (!not_shared_.empty()) absl::StrAppend(&times, "; no shared memory: ", not_shared_);
  return absl::StrFormat("%d\tmeasured at the start, for %d of %d parameters and %d workers: %s",
                         std::ranges::min_element(seconds) - seconds.begin(), timed, job_.layout.element_count(),
                         pump_.world_size(), times);
}

absl::StatusOr<double> PeerExchange::TimeWay(const Way& way) {
  const CollectiveOptions join = {.what = "the trial of an exchange", .deadline = job_.join_deadline};
  // Buckets as in the job, so many as the trial has elements for.
  auto buckets = BucketMap::Create({.element_count = std::min(job_.layout.element_count(), kTrialElementsMax),
                                    .bucket_bytes = job_.buckets.bucket_bytes(),
                                    .world_size = job_.world_size});
  if (!buckets.ok()) return Fail(buckets.status());
  const std::span<float> own_gradient = !way.shares_memory ? std::span<float>() : arrays_.own_gradients.back();
  const auto node_count = std::ssize(ShareOf(job_.rank, DealLeavesEvenly(job_.micro_batches, job_.world_size)));
  auto trial = MachineTrial::Create({.buckets = *buckets,
                                     .slices = SlicesOf(way, *buckets, job_.rank),
                                     .optimizer = job_.optimizer,
                                     .own_gradient = own_gradient,
                                     .node_count = static_cast<int>(node_count)});
  if (!trial.ok()) return Fail(trial.status());
  // The one before has ended.
  trial_ = *std::move(trial);
  return trial_->Time(
      pump_,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return CreateMachine(way, trial_->buckets(), trial_->owner(), trial_->parameters());
      },
      join);
}

}  // namespace starring
