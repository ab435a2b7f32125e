#include "worker/python/group.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cfenv>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/reduce/ring_memory.h"
#include "common/transport/collectives.h"
#include "common/transport/tcp/tcp_transport.h"

namespace starring {
namespace {

// Raise it with every change after which one process would misunderstand another: heads, cuts, tags, orders of sums.
constexpr int32_t kGroupVersion = 5;

// How long a process with nothing under way waits at a time.
constexpr absl::Duration kIdleWait = absl::Hours(1);

// How long Abort waits for its notices to leave, which takes the thread two seconds at most.
constexpr std::chrono::seconds kAbortPatience{5};

// How long a rank that leaves waits for the others to unmap its GPU memory.
constexpr absl::Duration kGpuLeaveDeadline = absl::Seconds(10);

enum class Role { kRank, kServer };

// The values that must be equal on all processes, sent as they are in memory, little-endian. The number of processes is
// part of the rendezvous. All versions of the library send so many bytes.
struct GroupAgreement {
  int32_t version = kGroupVersion;
  int16_t topology = 0;
  int16_t wants_gpu = 0;
  int32_t server_count = 0;
};
static_assert(sizeof(GroupAgreement) == 12);

std::string DescribeTopology(const GroupAgreement& agreement) {
  if (agreement.topology == static_cast<int16_t>(Topology::kRing)) return "a ring";
  if (agreement.server_count == 0) return "a star without servers";
  return absl::StrCat("a star with ", agreement.server_count, agreement.server_count == 1 ? " server" : " servers");
}

// Empty: both are the same.
// A server knows no wish of the ranks for GPU memory.
std::string Compare(const std::string& name, Role role, const GroupAgreement& other, const GroupAgreement& root) {
  if (other.version != root.version) {
    return absl::StrCat(name, " has version ", other.version, " of libstarring, rank 0 version ", root.version,
                        ": install the same on all hosts");
  }
  if (role == Role::kRank && other.wants_gpu != root.wants_gpu) {
    const auto wish = [](const GroupAgreement& one) { return one.wants_gpu != 0 ? "GPU memory" : "host memory"; };
    return absl::StrCat(name, " opens a group for sums in ", wish(other), ", rank 0 one for sums in ", wish(root),
                        ": give all processes the same options");
  }
  if (other.topology == root.topology && other.server_count == root.server_count) return "";
  return absl::StrCat(name, " opens ", DescribeTopology(other), ", rank 0 ", DescribeTopology(root),
                      ": give all processes the same options");
}

}  // namespace

int64_t GroupUnexpectedBytesMax(int worker_count) {
  // A peer sends contributions to this owner, and as an owner results: the factor of 2.
  const int64_t pieces = 2 * kReduceStarSlots * (ReduceStarMessageBytes(worker_count) + kTcpKeptMessageBytes);
  const int64_t heads = kReductionsMax * (static_cast<int64_t>(sizeof(ReductionHead)) + kTcpKeptMessageBytes);
  return std::max(TcpUnexpectedBytesMax(worker_count), kTcpControlBytesMax + pieces) + heads;
}

absl::StatusOr<std::unique_ptr<Group>> Group::Create(std::unique_ptr<Transport> transport, Options options) {
  // Agreement comes first: processes with other options would share memory of other sizes. The thread comes last, and
  // then owns pump and machine.
  std::unique_ptr<Group> group(new Group(std::make_unique<HostTransport>(std::move(transport)), std::move(options)));
  RETURN_IF_ERROR(group->Agree());
  RETURN_IF_ERROR(group->ShareMemory());
  if (group->options_.gpu.has_value()) RETURN_IF_ERROR(group->ShareGpuMemory());
  RETURN_IF_ERROR(group->CreateMachine());
  // A server waits for ranks, always: it is asked only whether it answers.
  const WorkPhase phase = group->is_server() ? WorkPhase::kExchange : WorkPhase::kOutside;
  group->progress_.Enter(phase, ProgressState::Clock::now());
  RETURN_IF_ERROR(group->StartThread());
  return group;
}

Group::Group(std::unique_ptr<HostTransport> transport, Options options)
    : options_(std::move(options)),
      pump_(transport.get(),
            {.times = {.report_after = options_.stall_report}, .progress = &progress_, .say = options_.say},
            options_.server_count),
      transport_(std::move(transport)) {
  CHECK_LT(options_.server_count, transport_->world_size());
  CHECK(options_.server_count == 0 || options_.topology == Topology::kStar);
}

// Only rank 0 compares, and all processes return its verdict. So they fail with one sentence.
absl::Status Group::Agree() {
  if (pump_.world_size() == 1) return absl::OkStatus();
  const CollectiveOptions join = {.what = "joining", .deadline = options_.join_deadline, .with_servers = true};
  const GroupAgreement mine = {.topology = static_cast<int16_t>(options_.topology),
                               .wants_gpu = static_cast<int16_t>(options_.gpu.has_value() ? 1 : 0),
                               .server_count = options_.server_count};
  std::vector<GroupAgreement> all(pump_.rank() == 0 ? pump_.world_size() : 0);
  RETURN_IF_ERROR(GatherToRoot(pump_, ControlTag::kAgreement, std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)), join));
  std::string verdict;
  for (size_t rank = 1; rank < all.size() && verdict.empty(); ++rank) {
    const Role role = static_cast<int>(rank) < pump_.worker_count() ? Role::kRank : Role::kServer;
    verdict = Compare(ProcessName(static_cast<int>(rank), pump_.worker_count()), role, all[rank], mine);
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump_, verdict, join));
  if (verdict.empty()) return absl::OkStatus();
  // All processes have the verdict, so the notices of an Abort would tell them nothing.
  pump_.PeersKnow();
  return absl::InvalidArgumentError(verdict);
}

absl::Status Group::ShareMemory() {
  if (pump_.world_size() == 1) return absl::OkStatus();
  const int64_t bytes = options_.topology == Topology::kRing ? RingMemory::BytesNeeded(pump_.worker_count())
                                                             : ReduceStarMemoryBytes(pump_.worker_count());
  const CollectiveOptions join = {.what = "joining", .deadline = options_.join_deadline, .with_servers = true};
  const int first = first_owner();
  ASSIGN_OR_RETURN(HostMemory::Outcome outcome,
                   HostMemory::Meet(pump_,
                                    {.bytes = [=](int rank) { return rank >= first ? bytes : 0; },
                                     .layout = absl::StrCat(kGroupVersion),
                                     .boot_id = options_.host_id},
                                    join));
  host_refusal_ = outcome.refusal;
  if (outcome.memory != nullptr) {
    memory_ = std::move(outcome.memory);
    transport_->Attach(memory_->board());
    own_ = memory_->writable_piece(pump_.rank());
  } else if (pump_.rank() >= first && options_.topology == Topology::kStar) {
    // A ring that sends messages has memory of its own.
    private_ = AlignedFloats((bytes + sizeof(float) - 1) / sizeof(float));
    own_ = std::as_writable_bytes(private_.span()).first(bytes);
  }
  return absl::OkStatus();
}

// Said by this rank, before it takes memory.
std::string Group::WhyNoGpu() {
  const Gpu& wish = *options_.gpu;
  const std::string rank = absl::StrCat("rank ", pump_.rank());
  if (wish.ordinal < 0) return absl::StrCat("the arrays of ", rank, " are not all on one GPU");
  if (wish.bytes <= 0) return absl::StrCat(rank, " wants ", wish.bytes, " bytes of GPU memory");
  absl::StatusOr<std::unique_ptr<GpuContext>> context = GpuContext::Create(wish.ordinal, wish.image);
  if (!context.ok()) return absl::StrCat(rank, ": ", std::string(context.status().message()));
  gpu_ = *std::move(context);
  return "";
}

absl::Status Group::ShareGpuMemory() {
  // These reasons are the same on all processes, which so need no messages.
  if (options_.server_count > 0) {
    gpu_refusal_ = "servers add in host memory";
  } else if (pump_.world_size() == 1) {
    gpu_refusal_ = "there is one rank";
  } else if (pump_.world_size() > kGpuRanksMax) {
    gpu_refusal_ =
        absl::StrCat(pump_.world_size(), " ranks are more than the ", kGpuRanksMax, " that may share GPU memory");
  } else if (memory_ == nullptr) {
    gpu_refusal_ = host_refusal_;
  }
  if (!gpu_refusal_.empty()) return absl::OkStatus();
  const CollectiveOptions join = {.what = "joining", .deadline = options_.join_deadline};
  gpu_refusal_ = WhyNoGpu();
  RETURN_IF_ERROR(AgreeOnReason(pump_, join, &gpu_refusal_));
  if (gpu_refusal_.empty()) {
    const GpuContext::Scope scope(*gpu_);
    auto outcome = SharedGpuMemory::Meet(pump_, gpu_.get(), options_.gpu->bytes, join);
    if (!outcome.ok()) {
      // Another rank may map memory of this context.
      static_cast<void>(gpu_.release());
      return outcome.status();
    }
    gpu_memory_ = std::move(outcome->memory);
    gpu_refusal_ = std::move(outcome->refusal);
  }
  if (gpu_memory_ == nullptr) gpu_ = nullptr;
  return absl::OkStatus();
}

absl::Status Group::CreateMachine() {
  if (is_server()) {
    CreateServer();
  } else if (gpu_memory_ != nullptr) {
    const GpuContext::Scope scope(*gpu_);
    const auto way = options_.topology == Topology::kRing ? ReduceGpu::Way::kRing : ReduceGpu::Way::kStar;
    ASSIGN_OR_RETURN(auto machine, ReduceGpu::Create({.transport = transport_.get(),
                                                      .context = gpu_.get(),
                                                      .memory = gpu_memory_.get(),
                                                      .way = way,
                                                      .ring = [board = memory_->board()] { board->RingHere(); }}));
    gpu_machine_ = machine.get();
    machine_ = std::move(machine);
  } else if (options_.topology == Topology::kRing) {
    machine_ = std::make_unique<ReduceRing>(RingOptions());
  } else {
    machine_ = std::make_unique<ReduceStar>(StarOptions());
  }
  return absl::OkStatus();
}

ReduceRing::Options Group::RingOptions() {
  ReduceRing::Options ring = {.transport = transport_.get(), .own = {}, .right = {}};
  if (memory_ != nullptr) {
    const int worker_count = pump_.worker_count();
    ring.own.emplace(own_, worker_count);
    ring.right.emplace(memory_->writable_piece((pump_.rank() + 1) % worker_count), worker_count);
  }
  return ring;
}

ReduceStarOptions Group::StarOptions() {
  ReduceStarOptions star = {.transport = transport_.get(),
                            .server_count = options_.server_count,
                            .memory = own_,
                            .shared = {},
                            .is_shared = memory_ != nullptr};
  // A server uses no memory of other servers.
  for (int rank = first_owner(); memory_ != nullptr && !is_server() && rank < pump_.world_size(); ++rank) {
    star.shared.push_back(memory_->writable_piece(rank));
  }
  return star;
}

void Group::CreateServer() {
  server_ = std::make_unique<SumServer>(StarOptions());
  // No other thread exists yet: the lock is for the thread-safety analysis. st_serve waits for this ticket.
  const MutexLock lock(mutex_);
  tickets_[kServerTicket] = {};
}

// The thread inherits the mask of signals: those of the process are for threads that expect them.
absl::Status Group::StartThread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status status;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    status = absl::InternalError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

Group::~Group() {
  {
    const MutexLock lock(mutex_);
    orders_.stop = true;
    Order();
  }
  if (thread_.joinable()) thread_.join();
  // Other ranks may still map the memory, which must not end with its context.
  if (gpu_memory_ != nullptr && !gpu_memory_is_free_) {
    machine_ = nullptr;
    gpu_memory_ = nullptr;
    static_cast<void>(gpu_.release());
  }
}

void Group::Order() {
  // The flag is set before the call of Wake, so a thread that wakes sees it.
  has_orders_ = true;
  transport_->Wake();
}

absl::StatusOr<int64_t> Group::Begin(const ReductionHead& head, std::byte* data) {
  RETURN_IF_ERROR(CheckHead(head));
  if (adds_on_gpu()) return absl::InvalidArgumentError("the group adds arrays in GPU memory: call st_allreduce_gpu");
  return Enqueue({.head = head, .data = data});
}

absl::StatusOr<int64_t> Group::BeginOnGpu(const ReductionHead& head, std::byte* data, CudaDriver::Stream stream) {
  RETURN_IF_ERROR(CheckHead(head));
  if (!adds_on_gpu()) {
    return absl::InvalidArgumentError(absl::StrCat("the group adds arrays in host memory",
                                                   gpu_refusal_.empty() ? "" : ", because ", gpu_refusal_,
                                                   ": call st_allreduce"));
  }
  RETURN_IF_ERROR(gpu_machine_->CheckSize(head));
  const GpuContext::Scope scope(*gpu_);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(const CudaDriver::Event arrival, gpu_->RecordEvent(stream));
  absl::StatusOr<int64_t> ticket = Enqueue({.head = head, .data = data, .arrival = arrival});
  if (!ticket.ok()) gpu_->DestroyEvent(arrival);
  return ticket;
}

absl::StatusOr<int64_t> Group::Enqueue(Reduction reduction) {
  const MutexLock lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (is_server()) return absl::InvalidArgumentError("a server adds what the ranks begin, and begins nothing itself");
  if (std::ssize(tickets_) >= kReductionsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(tickets_.size(), " sums are begun and not awaited, the most that are allowed: wait for some"));
  }
  const int64_t number = begun_count_++;
  // Tickets of ranks begin at 1, because kServerTicket is 0.
  tickets_[number + 1] = {};
  reduction.number = number;
  orders_.begun.push_back(reduction);
  Order();
  return number + 1;
}

std::optional<absl::Status> Group::Wait(int64_t ticket, std::chrono::milliseconds patience) {
  patience = std::clamp(patience, std::chrono::milliseconds(0), std::chrono::milliseconds(kDeadlineMsMax));
  const MutexLock lock(mutex_);
  // Another thread may take the ticket's end meanwhile.
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = tickets_.find(ticket);
    return found == tickets_.end() || found->second.has_ended;
  };
  if (!changed_.WaitFor(mutex_, patience, is_over)) return std::nullopt;
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown or finished ticket ", ticket));
  }
  const absl::Status status = found->second.status;
  // Each ticket is awaited once, so the map has at most kReductionsMax entries.
  tickets_.erase(found);
  return status;
}

void Group::Abort(const absl::Status& why) {
  CHECK(!why.ok());
  const MutexLock lock(mutex_);
  if (is_over_) return;
  if (orders_.abort.ok()) orders_.abort = why;
  Order();
  changed_.WaitFor(mutex_, kAbortPatience, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_; });
}

Group::Orders Group::TakeOrders() {
  const MutexLock lock(mutex_);
  has_orders_ = false;
  Orders orders = std::exchange(orders_, {});
  // A rank that goes with tickets that have not ended leaves sums behind which the others cannot complete.
  if (orders.stop && orders.abort.ok() &&
      std::ranges::any_of(tickets_, [](const auto& entry) { return !entry.second.has_ended; })) {
    orders.abort = absl::AbortedError(is_server() ? "the server was closed while ranks use it"
                                                  : "the rank has closed the group before its sums ended");
  }
  return orders;
}

void Group::Run() {
  // Sums must not depend on what the process has set, for instance that subnormal numbers are 0.
  std::fesetenv(FE_DFL_ENV);
  pthread_setname_np(pthread_self(), "starring");
  absl::Status status = gpu_ == nullptr ? absl::OkStatus() : gpu_->MakeCurrent();
  if (status.ok()) status = is_server() ? Serve() : Drive();
  // The calls take up to two seconds, so they come before the lock: Begin and Wait go on meanwhile.
  if (!status.ok()) pump_.Abort(status);
  if (machine_ != nullptr) machine_->Stop();
  const MutexLock lock(mutex_);
  for (const Reduction& reduction : orders_.begun) {
    if (reduction.arrival != nullptr) gpu_->DestroyEvent(static_cast<CudaDriver::Event>(reduction.arrival));
  }
  orders_.begun.clear();
  // Nothing touches the data of a reduction any more.
  broken_ = status.ok() ? absl::FailedPreconditionError("the group has ended") : status;
  is_over_ = true;
  for (auto& [number, ticket] : tickets_) {
    if (!ticket.has_ended) ticket = {.has_ended = true, .status = status};
  }
  changed_.NotifyAll();
}

absl::Status Group::Drive() {
  while (true) {
    const Orders orders = TakeOrders();
    RETURN_IF_ERROR(orders.abort);
    if (orders.stop) return Leave();
    BeginAll(orders.begun);
    RETURN_IF_ERROR(machine_->status());
    EndTickets(machine_->TakeCompleted());
    RETURN_IF_ERROR(AwaitNews());
  }
}

void Group::BeginAll(const std::vector<Reduction>& begun) {
  for (const Reduction& reduction : begun) {
    progress_.set_step(reduction.head.step);
    progress_.set_bucket(reduction.head.bucket);
    machine_->Begin(reduction);
    CountCalls();
    EnterPhase();
    next_number_ = reduction.number + 1;
  }
}

// A GPU has not computed the array of a sum when that begins, and only afterwards do others hold it up.
bool Group::WaitsForOthers() const { return machine_ != nullptr && !machine_->IsIdle() && !machine_->IsComputing(); }

// The roll call names the rank that has made fewer calls: the one whose GPU is late.
void Group::CountCalls() {
  for (; machine_ != nullptr && counted_count_ < machine_->contributed_count(); ++counted_count_) pump_.CountCall();
}

void Group::EnterPhase() {
  const WorkPhase phase = WaitsForOthers()     ? WorkPhase::kExchange
                          : machine_->IsIdle() ? WorkPhase::kOutside
                                               : WorkPhase::kBackward;
  progress_.Enter(phase, ProgressState::Clock::now());
}

void Group::EndTickets(const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return;
  if (machine_->IsIdle()) progress_.Enter(WorkPhase::kOutside, ProgressState::Clock::now());
  const MutexLock lock(mutex_);
  // Every number has a ticket: Wait erases only tickets that have ended.
  for (const int64_t number : numbers) tickets_.at(number + 1).has_ended = true;
  changed_.NotifyAll();
}

// Returns when there are orders, or a reduction is complete or wrong.
absl::Status Group::AwaitNews() {
  return AwaitUntil([this] { return has_orders_ || machine_->has_completed() || !machine_->status().ok(); });
}

absl::Status Group::AwaitUntil(absl::FunctionRef<bool()> done) {
  while (true) {
    const bool waits = WaitsForOthers();
    const MessagePump::Clock::time_point deadline =
        waits ? machine_->last_progress() + absl::ToChronoNanoseconds(BoundedDeadline(options_.exchange_deadline))
              : DeadlineAfter(kIdleWait);
    const auto ends = [&] {
      CountCalls();
      return done() || waits != WaitsForOthers();
    };
    const absl::Status status = pump_.PumpUntil(ends, deadline, waits ? DescribeReduction(machine_->Oldest()) : "");
    if (status.ok() && !done()) {
      EnterPhase();
      continue;
    }
    // A peer may have given up because of a deadline.
    if (!absl::IsDeadlineExceeded(status) || !pump_.failure().ok()) return status;
    // A reduction that takes long and goes on is slow, not stuck: its deadline has moved.
    if (waits && WaitsForOthers() &&
        MessagePump::Clock::now() - machine_->last_progress() >=
            absl::ToChronoNanoseconds(BoundedDeadline(options_.exchange_deadline))) {
      return DescribeDeadline();
    }
  }
}

absl::Status Group::DescribeDeadline() {
  const std::string what = DescribeReduction(machine_->Oldest());
  std::string missing = machine_->OwnDelay();
  if (missing.empty()) {
    ASSIGN_OR_RETURN(missing, pump_.FindMissing());
  }
  return absl::DeadlineExceededError(
      absl::StrCat(what, " did not come within ", absl::FormatDuration(options_.exchange_deadline), ": ", missing));
}

// Nothing is under way here, so other ranks need nothing of this one but, if there are servers, to know that it goes.
absl::Status Group::Leave() {
  if (gpu_memory_ != nullptr) {
    machine_->Stop();
    // A rank that is late or gone costs this process the memory, and nothing else.
    gpu_memory_is_free_ = gpu_memory_->Disband(pump_, kGpuLeaveDeadline).ok();
  }
  if (options_.server_count == 0) return absl::OkStatus();
  machine_->Begin({.number = next_number_, .head = {.kind = ReductionHead::Kind::kEnd}});
  return AwaitUntil([this] { return machine_->IsIdle(); });
}

absl::Status Group::Serve() {
  while (true) {
    const Orders orders = TakeOrders();
    RETURN_IF_ERROR(orders.abort);
    RETURN_IF_ERROR(server_->status());
    if (orders.stop || server_->is_over()) return absl::OkStatus();
    RETURN_IF_ERROR(AwaitUntil([this] { return has_orders_ || server_->is_over() || !server_->status().ok(); }));
  }
}

}  // namespace starring
