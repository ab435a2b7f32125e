#include "worker/exchange/peer/peer_exchange.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/owned_slices.h"
#include "common/transport/collectives.h"
#include "worker/exchange/peer/cuda_aware/cuda_aware_owner.h"
#include "worker/exchange/peer/cuda_aware/cuda_slice_owner.h"
#include "worker/exchange/peer/gpu_ring_machine.h"
#include "worker/exchange/peer/memory_machine.h"
#include "worker/exchange/peer/ring_machine.h"
#include "worker/exchange/peer/server_ranks.h"
#include "worker/exchange/peer/star_machine.h"

namespace starring {
namespace {

// How long the background thread sleeps, again and again, while the trainer drives: first for as long as a Submit
// takes, then longer. After the longest pause it waits for the mutex.
constexpr std::chrono::microseconds kPauseMin{20};
constexpr std::chrono::microseconds kPauseMax{320};

// A call of the trainer that begins so soon after the one before follows at once: nothing was computed between them.
// Where one does not follow although it did the last time, the background thread wakes up within kRollCallInterval.
constexpr std::chrono::microseconds kPromptMax{20};

// How long a step's last Await goes on when all parameters are here, while its last messages leave.
constexpr std::chrono::microseconds kSeeOffMax{50};

// While nothing arrives the background thread answers roll calls and tells its progress this often: well within
// StallTimes::patience, or this rank would be called silent.
constexpr std::chrono::milliseconds kRollCallInterval{50};

// The first message of a sum: its purpose, its length, and its first values.
constexpr size_t kSumHeadValues = 6;
struct SumHead {
  int64_t purpose = 0;
  int64_t value_count = 0;
  std::array<double, kSumHeadValues> values;
};
static_assert(sizeof(SumHead) == 64, "it is sent as it is in memory");

void SetFlag(const std::string& name, const std::string& value, std::vector<std::pair<std::string, std::string>>& all) {
  const auto found = std::ranges::find(all, name, &std::pair<std::string, std::string>::first);
  if (found == all.end()) {
    all.emplace_back(name, value);
  } else {
    found->second = value;
  }
}

}  // namespace

PeerExchange::PeerExchange(std::unique_ptr<Transport> transport, Options options)
    : PeerExchange(std::make_unique<HostTransport>(std::move(transport)), std::move(options)) {}

PeerExchange::PeerExchange(std::unique_ptr<HostTransport> transport, Options options)
    : server_count_(options.server_count),
      update_threads_(options.update_threads),
      way_{.algorithm = options.algorithm},
      sharing_(options.sharing),
      shares_gpu_memory_(options.shares_gpu_memory),
      gpus_wait_(options.gpus_wait),
      stall_report_(options.stall.times.report_after),
      say_(options.stall.say),
      unlocked_transport_(*transport),
      mpi_(options.mpi),
      nccl_(options.nccl),
      track_(AddTrack(options.trace, {.name = "exchange"})),
      device_(options.device),
      tries_device_memory_(options.tries_device_memory),
      gpu_(options.gpu),
      // The pump is initialised before the transport is moved to its member. It keeps the pointer, which the move does
      // not change.
      pump_(transport.get(), std::move(options.stall), server_count_),
      transport_(std::move(transport)) {
  CHECK(way_.algorithm != Algorithm::kAllreduce || mpi_ != nullptr || nccl_ != nullptr) << "no library adds";
  CHECK(nccl_ == nullptr || (gpu_ != nullptr && way_.algorithm == Algorithm::kAllreduce));
  CHECK(!gpus_wait_ ||
        (shares_gpu_memory_ && (way_.algorithm == Algorithm::kDirect || way_.algorithm == Algorithm::kRing)));
  CHECK_EQ(way_.algorithm == Algorithm::kDedicated, server_count_ > 0);
  CHECK_LT(pump_.rank(), pump_.worker_count()) << "servers run server/shard/shard_rank.h";
}

PeerExchange::~PeerExchange() {
  if (gpu_flags_ != nullptr && gpu_->watch() != nullptr) gpu_->watch()->AskForPeers(nullptr);
  StopBackground();
}

absl::Status PeerExchange::Start(const JobSpec& job, std::span<float> parameters) {
  TrainerDrives drive(*this);
  CHECK(machine_ == nullptr) << "Start called twice";
  CHECK_EQ(parameters.size(), job.layout.element_count());
  CHECK(job.sum_order == SumOrder::kChain ||
        (way_.algorithm != Algorithm::kRing && way_.algorithm != Algorithm::kAllreduce))
      << "only a star adds as a tree";
  // The caller's optimizer state need not outlive Start: job_ has the spans only while ShareStart reads them.
  job_ = job;
  job_.optimizer_state.clear();
  parameters_ = parameters;
  if (job.rank != pump_.rank() || job.world_size != pump_.worker_count()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "--rank=", job.rank, " --world_size=", job.world_size, ", but the launcher started this process as rank ",
        pump_.rank(), " of ", pump_.worker_count(), ": leave both flags out")));
  }
  // Agreement comes first. The messages that follow have lengths that each rank computes from its own flags and layout,
  // and MPI says nothing of a message that is shorter than its receive.
  RETURN_IF_ERROR(Agree());
  RETURN_IF_ERROR(ShareMemory());
  RETURN_IF_ERROR(ChooseFastest());
  RETURN_IF_ERROR(CreateOwner());
  job_.optimizer_state = job.optimizer_state;
  RETURN_IF_ERROR(ShareStart());
  job_.optimizer_state.clear();
  trainers_memory_ = TrainersMemory();
  machine_ = CreateMachine();
  // Here, because it reads a file.
  has_enough_cores_ = pump_.world_size() <= sysconf(_SC_NPROCESSORS_ONLN);
  if (!owner_->status().ok()) return Fail(owner_->status());  // the machine's memory
  oldest_round_ = job.first_step;
  last_round_ = job.first_step - 1;
  if (gpu_flags_ != nullptr && gpu_->watch() != nullptr) {
    gpu_->watch()->AskForPeers([this] { return LatePeers(); });
  }
  // The thread drives machine_, so it begins last. One rank alone never has anything in flight.
  if (pump_.world_size() > 1) background_ = std::thread([this] { DriveInBackground(); });
  return absl::OkStatus();
}

// Rank 0 compares the agreement of each rank with its own and tells the outcome to all; an empty verdict is agreement.
// Servers compare too, as they do over gRPC, and know whether they have the memory: what they send to rank 0 is their
// verdict.
absl::Status PeerExchange::Agree() {
  const CollectiveOptions join = {.what = "joining", .deadline = job_.join_deadline, .with_servers = true};
  // A rank that chooses and one that does not would wait for different messages. The flags of both have resolved to the
  // same values.
  if (way_.algorithm == Algorithm::kFastest) SetFlag("sync", "auto", job_.agreed_flags);
  // So would ranks that share memory and those that do not.
  if (shares_gpu_memory_) {
    SetFlag("same_host", "gpu_memory", job_.agreed_flags);
    SetFlag("gpu_waits", gpus_wait_ ? "graph" : "host", job_.agreed_flags);
  } else if (sharing_ != HostSharing::kNever) {
    SetFlag("same_host", sharing_ == HostSharing::kRequired ? "shared_memory" : "auto", job_.agreed_flags);
  }
  const std::string mine = SerializeAgreement(job_);
  if (way_.algorithm == Algorithm::kDedicated) {
    RETURN_IF_ERROR(JoinServers(
        pump_, job_,
        {.agreement = mine, .stall_report = stall_report_, .shares_memory = sharing_ != HostSharing::kNever}));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump_, mine, join));
  // Only rank 0 compares, and all ranks return its verdict. So they fail with one sentence, and no notice is needed.
  std::string verdict;
  for (size_t rank = 1; rank < all.size() && verdict.empty(); ++rank) {
    const bool is_worker = static_cast<int>(rank) < pump_.worker_count();
    verdict =
        is_worker ? std::string(CompareAgreements(static_cast<int>(rank), all[rank], 0, mine).message()) : all[rank];
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump_, verdict, join));
  if (verdict.empty()) return absl::OkStatus();
  // A notice, which travels apart, may be read before the verdict: that rank would say that a peer has given up, and
  // end as if a restart could help.
  pump_.PeersKnow();
  return absl::InvalidArgumentError(verdict);
}

OwnedSlices::Options PeerExchange::OwnerOptions() const {
  return {.slices = SlicesOf(way_, job_.buckets, job_.rank),
          .element_count = job_.layout.element_count(),
          .first_step = job_.first_step,
          .optimizer = job_.optimizer,
          .schedule = job_.schedule};
}

absl::Status PeerExchange::CreateHostOwner() {
  // It may fail on this rank alone, so the peers are told.
  auto clipping = ClippingOwner::Create(job_, way_.shares_memory ? arrays_.parameters : std::span<float>());
  if (!clipping.ok()) return Fail(clipping.status());
  clipping_ = clipping->get();
  std::unique_ptr<SliceOwner> owner = *std::move(clipping);
  if (owner == nullptr) {
    absl::StatusOr<OwnedSlices> owned = OwnedSlices::Create(OwnerOptions());
    if (!owned.ok()) return Fail(owned.status());
    owner = std::make_unique<HostSliceOwner>(*std::move(owned));
  }
  machine_ = nullptr;  // if there is one, it refers to the owner that is replaced
  owner_ = std::move(owner);
  return absl::OkStatus();
}

// Each rank updates all parameters on its GPU.
absl::Status PeerExchange::CreateNcclOwner() {
  const CollectiveOptions join = {.what = "meeting over NCCL", .deadline = job_.join_deadline};
  if (const absl::Status met = nccl_->Meet(pump_, join); !met.ok()) return Fail(met);
  auto owner = CudaSliceOwner::Create(gpu_, OwnerOptions());
  if (absl::IsResourceExhausted(owner.status())) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(std::string(owner.status().message()),
                                                        ": give a smaller --global_batch, more GPUs or --sync=ring")));
  }
  if (!owner.ok()) return Fail(owner.status());
  owner_ = *std::move(owner);
  own_parameters_ = owner_->own_parameters();
  return absl::OkStatus();
}

absl::Status PeerExchange::CreateOwner() {
  if (nccl_ != nullptr) return CreateNcclOwner();
  if (way_.is_on_gpus) return absl::OkStatus();  // ShareGpuMemory has created it
  const bool sends_to_ranks = way_.algorithm == Algorithm::kRing || way_.algorithm == Algorithm::kDirect;
  if (sends_to_ranks && !way_.shares_memory && job_.optimizer.clip_norm == 0) {
    const CollectiveOptions join = {.what = "the self-test of CUDA-aware MPI", .deadline = job_.join_deadline};
    const bool to_neighbours = way_.algorithm == Algorithm::kRing;
    const CudaAwareOptions aware = {
        .mpi = mpi_,
        .pairs = to_neighbours ? CudaAwarePairs::kNeighbours : CudaAwarePairs::kAllRanks,
        .without_claim = tries_device_memory_,
        .reserved_elements =
            to_neighbours ? RingMachine::GpuElements(job_.buckets) : StarMachine::GpuElements(job_.buckets),
        // A whole bucket's. A part of a short last block is not longer than a chunk can be.
        .message_elements = job_.buckets.bucket_bytes() / static_cast<int64_t>(sizeof(float)) / job_.world_size};
    // A rank without a GPU takes part as well: the others cannot know that it has none.
    RETURN_IF_ERROR(CreateCudaAwareOwner(pump_, device_, OwnerOptions(), aware, join, owner_));
  }
  if (owner_ == nullptr) RETURN_IF_ERROR(CreateHostOwner());
  own_parameters_ = owner_->own_parameters();
  return absl::OkStatus();
}

std::span<float> PeerExchange::Results() const {
  if (clipping_ != nullptr) return clipping_->sums();
  return own_parameters_.empty() ? parameters_ : own_parameters_;
}

std::unique_ptr<BucketMachine> PeerExchange::CreateMachine() {
  return CreateMachine(way_, job_.buckets, owner_.get(), Results());
}

std::unique_ptr<BucketMachine> PeerExchange::CreateMachine(const Way& way, const BucketMap& buckets, SliceOwner* owner,
                                                           std::span<float> parameters) {
  if (way.algorithm == Algorithm::kAllreduce) {
    AllreduceTransport* const adds = nccl_ != nullptr ? static_cast<AllreduceTransport*>(nccl_) : mpi_;
    return std::make_unique<AllreduceMachine>(AllreduceMachine::Options{
        .buckets = &buckets, .owner = owner, .parameters = parameters, .transport = adds, .track = track_});
  }
  if (way.is_on_gpus && way.algorithm == Algorithm::kRing) {
    return std::make_unique<GpuRingMachine>(GpuRingMachine::Options{.buckets = &buckets,
                                                                    .hops = ring_hops_,
                                                                    .own_gradient = arrays_.own_gradients.back(),
                                                                    .board = memory_->board(),
                                                                    .transport = transport_.get(),
                                                                    .track = track_});
  }
  if (way.shares_memory) {
    return std::make_unique<MemoryMachine>(MemoryMachine::Options{.buckets = &buckets,
                                                                  .owner = owner,
                                                                  .arrays = arrays_,
                                                                  .board = memory_->board(),
                                                                  .transport = transport_.get(),
                                                                  .sum_order = job_.sum_order,
                                                                  .micro_batches = job_.micro_batches,
                                                                  .server_count = server_count_,
                                                                  .update_threads = update_threads_,
                                                                  .track = track_});
  }
  const RankMachineOptions options = {.buckets = &buckets,
                                      .owner = owner,
                                      .parameters = parameters,
                                      .transport = transport_.get(),
                                      .track = track_,
                                      .first_tag = MessagePump::kFirstDataTag};
  if (way.algorithm == Algorithm::kRing) {
    RingMachine::Memory memory;
    // A trial of the ring sends messages: the memory is a star's then.
    if (memory_ != nullptr && arrays_.parameters.empty()) {
      memory = {.own = memory_->writable_piece(pump_.rank()),
                .right = memory_->writable_piece((pump_.rank() + 1) % pump_.world_size())};
    }
    return std::make_unique<RingMachine>(options, memory);
  }
  return std::make_unique<StarMachine>(
      options, StarMachine::Job{
                   .sum_order = job_.sum_order, .micro_batches = job_.micro_batches, .server_count = server_count_});
}

ExchangeMemory PeerExchange::TrainersMemory() const {
  if (!way_.shares_memory) {
    return {.gradients = {},
            .parameters = own_parameters_,
            .place = own_parameters_.empty() ? ExchangeMemory::Place::kHost : ExchangeMemory::Place::kDevice};
  }
  if (way_.is_on_gpus) {
    return {.gradients = arrays_.own_gradients, .parameters = own_parameters_, .place = ExchangeMemory::Place::kDevice};
  }
  // The ranks share sums then, and each has parameters of its own.
  const std::span<const float> parameters = clipping_ == nullptr ? arrays_.parameters : std::span<float>();
  return {.gradients = arrays_.own_gradients, .parameters = parameters};
}

// Sends rank 0's parameters and optimizer state to all ranks. Each owner keeps the state of the elements that it owns.
absl::Status PeerExchange::ShareStart() {
  const CollectiveOptions join = {.what = "the broadcast of rank 0's parameters", .deadline = job_.join_deadline};
  RETURN_IF_ERROR(BroadcastFromRoot(pump_, std::as_writable_bytes(parameters_), join));
  if (way_.algorithm == Algorithm::kDedicated) return SendStartToServers(pump_, job_, parameters_);
  owner_->CopyParametersIn(parameters_);
  // One rank is enough. The others read them after the last message of Start, which comes later.
  if (way_.shares_memory && !way_.is_on_gpus && job_.rank == 0) {
    std::ranges::copy(parameters_, arrays_.parameters.begin());
  }
  // Only rank 0 has loaded a checkpoint. The other ranks learn from it whether vectors of state follow.
  std::byte has_state{!job_.optimizer_state.empty()};
  RETURN_IF_ERROR(SendFromRoot(pump_, ControlTag::kState, {&has_state, 1}, join));
  const int vector_count = StateVectorCount(job_.optimizer);
  if (has_state == std::byte{0} || vector_count == 0) return absl::OkStatus();
  const size_t count = parameters_.size();
  // It is a member, not a local array: after an error MPI may still write into it, and members outlive the transport.
  scratch_.resize(count * vector_count);
  std::vector<std::span<const float>> state;
  for (int i = 0; i < vector_count; ++i) {
    const std::span<float> vector = std::span<float>(scratch_).subspan(i * count, count);
    if (job_.rank == 0) {
      CHECK_EQ(job_.optimizer_state[i].size(), count);
      std::copy(job_.optimizer_state[i].begin(), job_.optimizer_state[i].end(), vector.begin());
    }
    RETURN_IF_ERROR(BroadcastFromRoot(pump_, std::as_writable_bytes(vector), join));
    state.push_back(vector);
  }
  owner_->CopyStateIn(state);
  // It is as long as all state vectors together, and is not needed again before the first checkpoint.
  scratch_ = {};
  return absl::OkStatus();
}

OwnerMap PeerExchange::OwnersOf(const Way& way) const {
  const int rank_count = job_.world_size;
  if (way.algorithm == Algorithm::kDedicated) return OwnerMap::ShardRanges(server_count_);
  // With one rank, or if each rank owns every element, blocks have no meaning.
  if (way.algorithm == Algorithm::kAllreduce || rank_count == 1) return OwnerMap();
  if (way.shares_memory && way.algorithm != Algorithm::kRing) return OwnerMap::Ranges(rank_count);
  return way.algorithm == Algorithm::kDirect ? OwnerMap::JoinedChunks(rank_count) : OwnerMap::SplitChunks(rank_count);
}

std::vector<std::vector<ElementRange>> PeerExchange::SlicesOf(const Way& way, const BucketMap& buckets,
                                                              int rank) const {
  const OwnerMap owners = OwnersOf(way);
  std::vector<std::vector<ElementRange>> slices(buckets.bucket_count());
  if (way.algorithm == Algorithm::kDedicated) return slices;  // the servers own all
  const int owner = way.algorithm == Algorithm::kAllreduce ? 0 : rank;
  for (int b = 0; b < buckets.bucket_count(); ++b) slices[b] = owners.SliceOf(buckets.sum(b), owner);
  return slices;
}

void PeerExchange::Submit(const Submission& submission) {
  TrainerDrives drive(*this);
  CHECK(machine_ != nullptr) << "Submit before Start";
  if (!pump_.failure().ok()) return;  // Await returns it
  const bool is_last = submission.node == Submission::kLastNode;
  if (is_last) {
    pump_.CountCall();
    ++unawaited_count_;
    machine_->Submit(submission.round, submission.bucket, submission.gradient);
  } else {
    machine_->SubmitNode(submission.round, submission.bucket, submission.node, submission.gradient);
  }
  // The first messages leave now, not at the background thread's next visit. An error stays in the pump.
  (void)pump_.Pump();
  if (is_last) EndCall(2 * submission.bucket);
}

absl::Status PeerExchange::Await(int64_t round, int bucket) {
  TrainerDrives drive(*this);
  // The bucket may not be in flight: Submit does nothing after a failure.
  if (!pump_.failure().ok()) return pump_.failure();
  const bool clips = clipping_ != nullptr && !clipping_->HasUpdated(round);
  CHECK(!clips || unawaited_count_ == job_.buckets.bucket_count()) << "round " << round << " is not submitted whole";
  const auto wait_for = [&](int awaited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return machine_->IsReady(awaited); };
    return WaitUntil(is_over, absl::StrCat("step ", round, ", bucket ", awaited));
  };
  RETURN_IF_ERROR(wait_for(bucket));
  if (clips) {
    // Each bucket has a deadline of its own, as without clipping.
    for (int other = 0; other < job_.buckets.bucket_count(); ++other) RETURN_IF_ERROR(wait_for(other));
    // No other rank should have to wait for this one's messages while this one updates, so they leave before. All ranks
    // are about to be here: that takes no longer than the last bucket does.
    const auto is_idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return machine_->IsIdle(); };
    RETURN_IF_ERROR(WaitUntil(is_idle, absl::StrCat("step ", round, ", the last messages")));
    const auto start = std::chrono::steady_clock::now();
    clipping_->Update(round, parameters_);
    earlier_.optimizer_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (--unawaited_count_ == 0) SeeOff();
  EndCall(2 * bucket + 1);
  return absl::OkStatus();
}

// The peers are about to take this rank's last messages. Waiting for that here costs less than waking the background
// thread. With more ranks than cores the peer that is waited for may need this core.
void PeerExchange::SeeOff() {
  if (!has_enough_cores_) return;
  const auto end = std::chrono::steady_clock::now() + kSeeOffMax;
  while (!machine_->IsIdle() && pump_.Pump().ok() && std::chrono::steady_clock::now() < end) {
  }
}

void PeerExchange::BeginCall() {
  if (last_call_ < 0) return;
  next_is_prompt_[last_call_] = std::chrono::steady_clock::now() - last_call_end_ < kPromptMax;
  last_call_ = -1;
}

// On a core that both threads share, a wake-up costs more than a small exchange takes.
void PeerExchange::EndCall(int call) {
  if (machine_->IsIdle()) return;
  if (call >= std::ssize(next_is_prompt_)) next_is_prompt_.resize(call + 1);
  last_call_ = call;
  last_call_end_ = std::chrono::steady_clock::now();
  if (background_sleeps_ && !next_is_prompt_[call]) submitted_.NotifyOne();
}

// Await returns earlier: when the trainer may go on, parameters may still be on their way to other ranks.
absl::Status PeerExchange::Drain() {
  return WaitUntil([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return machine_->IsIdle(); }, "the last step");
}

absl::Status PeerExchange::WaitUntil(absl::FunctionRef<bool()> done, const std::string& what) {
  transport_->BeginLooking();
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done() || !owner_->status().ok(); };
  const absl::Status status = pump_.PumpUntil(is_over, DeadlineAfter(job_.exchange_deadline), what);
  transport_->EndLooking();
  // An error of the GPU comes first: a deadline that has passed as well is its consequence. But where GPUs map each
  // other's memory, the cause may be a rank that has died, and that is not known at once.
  if (!owner_->status().ok() && way_.is_on_gpus) RETURN_IF_ERROR(pump_.FindMissing().status());
  if (!owner_->status().ok()) return Fail(owner_->status());
  if (!absl::IsDeadlineExceeded(status)) return status;
  // Something is in flight, or `done` would be true. The roll call takes up to a second, and names the rank that keeps
  // the others waiting, which need not be a neighbour.
  const BucketMachine::InFlight oldest = machine_->Oldest();
  ASSIGN_OR_RETURN(const std::string missing, pump_.FindMissing());
  return Fail(absl::DeadlineExceededError(
      absl::StrCat(what, " did not come within ", absl::FormatDuration(job_.exchange_deadline),
                   " (oldest in flight: step ", oldest.step, ", bucket ", oldest.bucket, "): ", missing)));
}

absl::Status PeerExchange::Sum(SumPurpose purpose, std::span<double> values) {
  CHECK_LE(values.size(), kSumValuesMax);
  TrainerDrives drive(*this);
  pump_.CountCall();
  const CollectiveOptions options = {.what = "a sum over all ranks", .deadline = job_.exchange_deadline};
  const SumKind kind{.purpose = purpose, .value_count = static_cast<int64_t>(values.size())};
  // Every sum begins with a message of one length, so that rank 0 can receive it even from a rank that adds something
  // else, and can name that rank. A vote, which happens once a second, fits into it; longer sums need a second message.
  const size_t head_count = std::min(values.size(), kSumHeadValues);
  SumHead head{.purpose = static_cast<int64_t>(kind.purpose), .value_count = kind.value_count, .values = {}};
  std::copy_n(values.begin(), head_count, head.values.begin());
  std::vector<SumHead> heads(pump_.rank() == 0 ? pump_.worker_count() : 0);
  RETURN_IF_ERROR(GatherToRoot(pump_, ControlTag::kSum, std::as_bytes(std::span(&head, 1)),
                               std::as_writable_bytes(std::span(heads)), options));
  // `heads` is empty on the other ranks, which get their result from rank 0 below. Rank 0 alone knows that two ranks
  // differ, and tells the others by failing.
  for (size_t rank = 1; rank < heads.size(); ++rank) {
    const SumKind other{.purpose = static_cast<SumPurpose>(heads[rank].purpose),
                        .value_count = heads[rank].value_count};
    if (absl::Status same = CheckSameSum(static_cast<int>(rank), other, 0, kind); !same.ok()) return Fail(same);
    for (size_t i = 0; i < head_count; ++i) values[i] += heads[rank].values[i];
  }
  const std::span<double> rest = values.subspan(head_count);
  if (!rest.empty()) {
    std::vector<double> all(pump_.rank() == 0 ? rest.size() * pump_.worker_count() : 0);
    RETURN_IF_ERROR(GatherToRoot(pump_, ControlTag::kSumRest, std::as_bytes(rest),
                                 std::as_writable_bytes(std::span(all)), options));
    // Only rank 0 adds, so that all ranks get the same bits.
    for (size_t rank = 1; rank < all.size() / rest.size(); ++rank) {
      for (size_t i = 0; i < rest.size(); ++i) rest[i] += all[rank * rest.size() + i];
    }
  }
  return SendFromRoot(pump_, ControlTag::kSumResult, std::as_writable_bytes(values), options);
}

void PeerExchange::Abort(const absl::Status& why) {
  TrainerDrives drive(*this);
  pump_.Abort(why);
}

// Without an error every operation has completed, because Finish drains. After an error no thread polls any more, and
// MPI may still write into the receives that were posted. NCCL's kernel may still spin on the GPU, for which the
// destructors of others would wait: it ends here, or the owner, which would wait for it too, must not end.
bool PeerExchange::Release() {
  StopBackground();
  const MutexLock lock(mutex_);
  const bool has_failed = !pump_.failure().ok() || (owner_ != nullptr && !owner_->status().ok());
  if (nccl_ != nullptr && has_failed && !nccl_->Abort()) {
    // The end of this process may hang too. Then its last words are the watch's, which name a call and no cause.
    const absl::Status why = pump_.failure().ok() ? owner_->status() : pump_.failure();
    if (say_) say_(absl::StrCat("NCCL does not end its work on the GPU, after: ", std::string(why.message())));
    return false;
  }
  if (owner_ != nullptr) owner_->Stop();
  // The destructors of others would wait for a GPU that waits for a rank which has gone.
  if (gpu_flags_ != nullptr && has_failed && !DrainGpu()) return false;
  // MPI and NCCL alone write between polls; any other transport writes in Poll, which nobody calls any more. NCCL that
  // was ended writes no more, and then the destructor of TCP sends this rank's last words.
  if (mpi_ == nullptr && (nccl_ == nullptr || has_failed)) return true;
  return pump_.failure().ok() && (machine_ == nullptr || machine_->IsIdle());
}

absl::Status PeerExchange::Fail(const absl::Status& status) {
  pump_.Abort(status);
  return status;
}

absl::Status PeerExchange::Finish() {
  {
    TrainerDrives drive(*this);
    RETURN_IF_ERROR(Drain());
    // The servers answer when all workers have finished, which is a barrier too.
    const CollectiveOptions end = {.what = "the end of the job", .deadline = job_.exchange_deadline};
    RETURN_IF_ERROR(way_.algorithm == Algorithm::kDedicated ? FinishAtServers(pump_, job_) : Barrier(pump_, end));
    if (gpu_memory_ != nullptr) RETURN_IF_ERROR(gpu_memory_->Disband(pump_, end));
  }
  StopBackground();
  return absl::OkStatus();
}

ExchangeCounters PeerExchange::CountersOfAllMachines() const {
  if (machine_ == nullptr) return earlier_;
  ExchangeCounters sum = machine_->counters();
  sum.bytes_sent += earlier_.bytes_sent;
  sum.bytes_received += earlier_.bytes_received;
  sum.optimizer_seconds += earlier_.optimizer_seconds;
  return sum;
}

ExchangeCounters PeerExchange::counters() const {
  const MutexLock lock(mutex_);
  ExchangeCounters counters = CountersOfAllMachines();
  if (!counters.shared_memory) counters.not_shared = not_shared_;
  return counters;
}

void PeerExchange::DriveInBackground() {
  // Linux lengthens sleeps by up to 50 us by default, more than kPauseMin. A failure of this call costs only time.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  const MutexLock lock(mutex_);
  owner_->EnterThread();
  while (!stopping_) {
    const bool shares = way_.shares_memory;  // then others ring while nothing is in flight here
    auto pause = std::chrono::microseconds(kRollCallInterval);
    if (gpu_flags_ != nullptr && !pump_.failure().ok()) {
      // This rank's GPU, and those of others, wait for what does not come any more.
      gpu_flags_->SayVoid();
      gpu_flags_->Release();
      pause = GpuFlags::kReleasePause;
    }
    if (!pump_.failure().ok() || (machine_->IsIdle() && !shares)) {
      background_sleeps_ = true;
      submitted_.WaitFor(mutex_, pause);
      background_sleeps_ = false;
    }
    (void)pump_.Pump(MessagePump::Listening::kAlways);  // an error stays in the pump
    if (!pump_.failure().ok() || (machine_->IsIdle() && !shares)) continue;
    mutex_.Unlock();
    unlocked_transport_.WaitInBackground(kRollCallInterval);
    LetTheTrainerDrive();
    mutex_.Lock();
  }
}

// A thread that waits for the mutex costs the trainer a system call when it unlocks. A Submit is over before that; an
// Await that takes longer can afford one system call, and this thread then need not look at the clock meanwhile.
void PeerExchange::LetTheTrainerDrive() const {
  for (std::chrono::microseconds pause = kPauseMin;
       pause <= kPauseMax && trainer_drives_.load(std::memory_order_relaxed); pause *= 2) {
    std::this_thread::sleep_for(pause);
  }
}

void PeerExchange::StopBackground() {
  if (!background_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  unlocked_transport_.Wake();
  submitted_.NotifyOne();
  background_.join();
}

}  // namespace starring
