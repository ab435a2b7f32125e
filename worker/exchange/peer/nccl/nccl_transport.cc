#include "worker/exchange/peer/nccl/nccl_transport.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/host/host_identity.h"

namespace starring {
namespace {

// While an allreduce is in flight: how long a wait sleeps between two looks at the GPU, and how long it polls before.
constexpr std::chrono::microseconds kGpuInterval{50};
constexpr std::chrono::microseconds kPollsFor{1000};

// A rank that dies breaks NCCL's connections too. The network is given so long to name that rank.
constexpr std::chrono::milliseconds kNamingTime{2000};

// Begins a text that is no refusal.
constexpr char kNoRefusal[] = "\t";

}  // namespace

NcclTransport::NcclTransport(std::unique_ptr<Transport> network, Options options)
    : network_(std::move(network)), options_(std::move(options)) {
  CHECK(options_.gpu != nullptr);
}

NcclTransport::~NcclTransport() { (void)Abort(); }

bool NcclTransport::Abort() {
  operations_.clear();
  queued_count_ = 0;
  is_queueing_ = false;
  waits_for_gpu_.store(false, std::memory_order_relaxed);
  if (communicator_ == nullptr) return !was_left_;
  // The watch does not look at this call: its sentence would end the process before the cause is said.
  std::packaged_task<void()> task([abort = options_.library->comm_abort, gone = std::exchange(communicator_, nullptr),
                                   enter_gpu = options_.enter_gpu] {
    // An error has no caller to go to: the communicator is gone either way.
    if (enter_gpu) enter_gpu();
    (void)abort(gone);
  });
  const std::future<void> over = task.get_future();
  std::thread ends(std::move(task));
  was_left_ = over.wait_for(options_.abort_deadline) != std::future_status::ready;
  if (was_left_) {
    ends.detach();
  } else {
    ends.join();
  }
  return !was_left_;
}

// The text for rank 0: a refusal, or this rank's release and GPU.
std::string NcclTransport::Describe() const {
  if (!options_.library.ok()) {
    return absl::StrCat("rank ", rank(), ": ", std::string(options_.library.status().message()), nccl::kInstall);
  }
  // NCCL tells GPUs apart by these three, so parts of one GPU (MIG) are one GPU.
  const std::string place = absl::StrCat(HostName(), " ", BootId(), " ", options_.gpu->info().bus_id);
  return absl::StrCat(kNoRefusal, nccl::VersionText(options_.library->version), "\t", absl::BytesToHexString(place),
                      "\t", options_.may_share_gpus ? 1 : 0);
}

// Rank 0's: a refusal, or the name of the communicator.
std::string NcclTransport::Answer(const std::vector<std::string>& all) const {
  std::vector<std::vector<std::string>> ranks;
  for (const std::string& text : all) {
    if (!absl::StartsWith(text, kNoRefusal)) return text;
    ranks.push_back(absl::StrSplit(text, '\t'));  // "", release, place of the GPU, whether it may be shared
  }
  const bool can_share = options_.library->version >= nccl::kVersionOfSharedGpus;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank][1] != ranks[0][1]) {
      return absl::StrCat("rank ", rank, " has NCCL ", ranks[rank][1], ", rank 0 has ", ranks[0][1],
                          ": give all ranks the same release");
    }
    const auto same = std::ranges::find_if(ranks, [&](const auto& other) { return other[2] == ranks[rank][2]; });
    const bool may_share = can_share && ranks[rank][3] == "1" && (*same)[3] == "1";
    if (same - ranks.begin() == static_cast<ptrdiff_t>(rank) || may_share) continue;
    return absl::StrCat(
        "ranks ", same - ranks.begin(), " and ", rank, " compute on one GPU, and NCCL ", ranks[0][1],
        " refuses that: give each rank a GPU, or set NCCL_MULTI_RANK_GPU_ENABLE=1 for all of them with NCCL ",
        nccl::VersionText(nccl::kVersionOfSharedGpus), " or newer");
  }
  nccl::UniqueId id;
  const CudaWatch::Call call(options_.watch, "naming NCCL's communicator");
  const absl::Status made = StatusOf(options_.library->get_unique_id(&id), "naming a communicator");
  if (!made.ok()) return std::string(made.message());
  return absl::StrCat(kNoRefusal, absl::BytesToHexString(std::string(id.bytes, sizeof(id.bytes))));
}

absl::Status NcclTransport::Meet(MessagePump& pump, const CollectiveOptions& join) {
  if (world_size() == 1) return absl::OkStatus();
  CHECK(communicator_ == nullptr) << "Meet called twice";
  ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTextToRoot(pump, Describe(), join));
  std::string answer = rank() == 0 ? Answer(all) : "";
  RETURN_IF_ERROR(SendTextFromRoot(pump, answer, join));
  if (!absl::StartsWith(answer, kNoRefusal)) {
    pump.PeersKnow();
    return absl::InvalidArgumentError(absl::StrCat("--sync=nccl: ", answer));
  }
  const std::string bytes = absl::HexStringToBytes(absl::StripPrefix(answer, kNoRefusal));
  nccl::UniqueId id;
  if (bytes.size() != sizeof(id)) {
    return absl::InternalError("rank 0 has named no communicator of NCCL: all ranks must run the same build");
  }
  std::memcpy(&id, bytes.data(), sizeof(id));
  return MakeCommunicator(pump, id, join);
}

absl::Status NcclTransport::MakeCommunicator(MessagePump& pump, const nccl::UniqueId& id,
                                             const CollectiveOptions& join) {
  ASSIGN_OR_RETURN(stream_, options_.gpu->CreateStream());
  nccl::Config config;
  {
    const CudaWatch::Call call(options_.watch, "making NCCL's communicator");
    RETURN_IF_ERROR(StatusOf(options_.library->comm_init_rank_config(&communicator_, world_size(), id, rank(), &config),
                             "meeting"));
  }
  waits_for_gpu_.store(true, std::memory_order_relaxed);
  absl::StatusOr<bool> in_progress = true;
  const auto is_over = [&] {
    in_progress = IsInProgress();
    return !in_progress.ok() || !*in_progress;
  };
  const absl::Status status = pump.PumpUntil(is_over, DeadlineAfter(join.deadline), join.what);
  waits_for_gpu_.store(false, std::memory_order_relaxed);
  // Without a message this wait was too long, and the ranks for which it waited are named.
  if (absl::IsDeadlineExceeded(status) && status.message().empty()) {
    ASSIGN_OR_RETURN(const std::string missing, pump.FindMissing());
    return absl::DeadlineExceededError(
        absl::StrCat("NCCL has not brought the ranks together within ", absl::FormatDuration(join.deadline), ": ",
                     missing, ": NCCL_DEBUG=INFO shows what it waits for, and its network is NCCL_SOCKET_IFNAME's"));
  }
  RETURN_IF_ERROR(status);
  return in_progress.status();
}

absl::Status NcclTransport::StatusOf(nccl::Result result, const char* call) const {
  if (result == nccl::Result::kSuccess || result == nccl::Result::kInProgress) return absl::OkStatus();
  const char* const more = options_.library->get_last_error(communicator_);
  const std::string text = absl::StrCat("NCCL, ", call, ": ", options_.library->get_error_string(result),
                                        more == nullptr || *more == 0 ? "" : ": ", more == nullptr ? "" : more);
  return result == nccl::Result::kRemoteError ? absl::UnavailableError(text) : absl::InternalError(text);
}

absl::StatusOr<bool> NcclTransport::IsInProgress() const {
  nccl::Result state = nccl::Result::kSuccess;
  RETURN_IF_ERROR(StatusOf(options_.library->comm_get_async_error(communicator_, &state), "asking for its state"));
  RETURN_IF_ERROR(StatusOf(state, "exchanging"));
  return state == nccl::Result::kInProgress;
}

void NcclTransport::PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) {
  CHECK_EQ(contribution.size(), sum.size());
  CHECK(communicator_ != nullptr || !error_.ok()) << "PostAllreduce before Meet, or after Abort";
  Operation operation = {.contribution = contribution, .sum = sum, .token = token, .event = nullptr};
  if (!events_.empty()) {
    operation.event = std::move(events_.back());
    events_.pop_back();
  } else if (auto event = options_.gpu->CreateEvent(); event.ok()) {
    operation.event = *std::move(event);
  } else {
    error_.Update(event.status());  // Poll returns it
  }
  operations_.push_back(std::move(operation));
  waits_for_gpu_.store(true, std::memory_order_relaxed);
  // The next Poll looks at the outcome.
  if (error_.ok()) error_ = Queue();
}

// Gives NCCL as many operations as it takes.
absl::Status NcclTransport::Queue() {
  while (queued_count_ < operations_.size()) {
    Operation& next = operations_[queued_count_];
    if (!is_queueing_) {
      const CudaWatch::Call call(options_.watch, "queueing NCCL's allreduce");
      RETURN_IF_ERROR(StatusOf(options_.library->all_reduce(next.contribution.data(), next.sum.data(), next.sum.size(),
                                                            nccl::DataType::kFloat32, nccl::Operation::kSum,
                                                            communicator_, stream_->native()),
                               "queueing an allreduce"));
      is_queueing_ = true;
    }
    // The kernel may not be on the stream yet, and an event would then say that it has ended.
    ASSIGN_OR_RETURN(const bool in_progress, IsInProgress());
    if (in_progress) return absl::OkStatus();
    RETURN_IF_ERROR(stream_->Record(next.event.get()));
    is_queueing_ = false;
    ++queued_count_;
  }
  return absl::OkStatus();
}

absl::Status NcclTransport::Advance(std::vector<Token>& completed) {
  RETURN_IF_ERROR(IsInProgress().status());
  RETURN_IF_ERROR(Queue());
  while (queued_count_ > 0) {
    ASSIGN_OR_RETURN(const bool has_passed, operations_.front().event->HasPassed());
    if (!has_passed) break;
    completed.push_back(operations_.front().token);
    events_.push_back(std::move(operations_.front().event));
    operations_.pop_front();
    --queued_count_;
  }
  if (operations_.empty()) waits_for_gpu_.store(false, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status NcclTransport::Poll(std::vector<Token>& completed) {
  RETURN_IF_ERROR(network_->Poll(completed));
  if (operations_.empty()) return absl::OkStatus();
  // A rank that has left will come to no allreduce.
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) network_->NeedPeer(peer);
  }
  if (error_.ok()) error_ = Advance(completed);
  if (error_.ok()) return absl::OkStatus();
  const auto now = std::chrono::steady_clock::now();
  if (error_since_ == std::chrono::steady_clock::time_point()) error_since_ = now;
  return now - error_since_ < kNamingTime ? absl::OkStatus() : error_;
}

void NcclTransport::Wait(std::chrono::microseconds longest) {
  network_->Wait(waits_for_gpu_.load(std::memory_order_relaxed) ? std::min(longest, kGpuInterval) : longest);
}

std::chrono::microseconds NcclTransport::polls_for() const {
  return waits_for_gpu_.load(std::memory_order_relaxed) ? std::max(network_->polls_for(), kPollsFor)
                                                        : network_->polls_for();
}

}  // namespace starring
