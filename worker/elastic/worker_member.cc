#include "worker/elastic/worker_member.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/host/host_identity.h"
#include "common/watch/roll_call.h"
#include "common/watch/stall_report.h"
#include "common/wire/exchange_message.h"
#include "proto/starring/v1/coordinator.pb.h"

namespace starring {
namespace {

// A thread that waits looks this often for what nothing notifies it of: a request to leave, and a lost connection.
constexpr std::chrono::milliseconds kLook(50);
constexpr std::chrono::seconds kFailurePatience(1);

// For a person whose address is wrong, or who has come before the run or after it.
constexpr char kWhatToGive[] =
    "start the elastic run, or give the address that it has printed, as --coordinator (launch: --join), and its "
    "--job_secret";
// After that, the address was right.
constexpr char kWhatToStart[] =
    "start the coordinator again, with its --state_dir and at its address, unless the run has ended";

// A speed is that of the last steps in the middle: one that was disturbed says nothing.
constexpr size_t kStepsCounted = 20;

double MedianWith(std::deque<double>* last, double value) {
  last->push_back(value);
  if (last->size() > kStepsCounted) last->pop_front();
  std::vector<double> sorted(last->begin(), last->end());
  std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
  return sorted[sorted.size() / 2];
}

// Whether the training thread computes by itself, and does not wait for others.
bool Computes(WorkPhase phase) {
  switch (phase) {
    case WorkPhase::kReadData:
    case WorkPhase::kForward:
    case WorkPhase::kBackward:
    case WorkPhase::kEvaluation:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The functions that the link's thread calls.
class WorkerMember::Link {
 public:
  static void Fill(WorkerMember& member, v1::MemberReport* report, bool is_first);
  static void Take(WorkerMember& member, const v1::MemberOrder& order);
  static void Refuse(WorkerMember& member, const absl::Status& why);
};

WorkerMember::WorkerMember(Options options) : options_(std::move(options)), id_(DrawNonce()) {
  link_ = std::make_unique<MemberLink>(MemberLink::Options{
      .coordinator = options_.coordinator,
      .security = options_.security,
      .report = [this](v1::MemberReport* report, bool is_first) { Link::Fill(*this, report, is_first); },
      .on_order = [this](const v1::MemberOrder& order) { Link::Take(*this, order); },
      .on_refused = [this](const absl::Status& why) { Link::Refuse(*this, why); }});
}

WorkerMember::~WorkerMember() = default;

void WorkerMember::Link::Fill(WorkerMember& member, v1::MemberReport* report, bool is_first) {
  const Options& options = member.options_;
  if (is_first) {
    v1::MemberReport::Hello* const hello = report->mutable_hello();
    hello->set_wire_version(kWireVersion);
    hello->set_member_id(member.id_);
    hello->set_name(absl::StrCat("worker (process ", getpid(), " on ", HostName(), ")"));
    hello->set_run_id(options.run_id);
    v1::RunTerms* const terms = hello->mutable_terms();
    terms->set_agreement(options.agreement);
    terms->set_steps_per_epoch(options.steps_per_epoch);
    terms->set_end_step(options.end_step);
    terms->set_first_step(options.first_step);
  }
  v1::MemberReport::Worker* const worker = report->mutable_worker();
  worker->set_generation(member.training_);
  worker->set_leaves(options.asked_to_leave());
  worker->set_step(member.step_);
  worker->set_leaf_count(member.leaf_count_);
  worker->set_computes(Computes(options.state->Read(ProgressState::Clock::now()).phase));
  worker->set_seconds_per_leaf(member.seconds_per_leaf_);
  worker->set_step_seconds(member.step_seconds_);
  worker->set_trial_leaf_seconds(options.trial_leaf_seconds);
  const MutexLock lock(member.mutex_);
  worker->set_ready(member.ready_);
  if (!member.trouble_.ok()) {
    const ErrorOrigin origin = OriginOf(member.trouble_);
    worker->set_trouble(std::string(member.trouble_.message()));
    // ErrorOrigin::Kind and the message's Origin have the same numbers.
    worker->set_origin(static_cast<v1::MemberReport::Worker::Origin>(origin.kind));
    worker->set_origin_number(origin.number);
  }
  if (member.reached_.has_value() && member.reached_->ok()) {
    worker->set_reached(member.reach_number_);
  } else if (member.reached_.has_value()) {
    worker->set_unreached(member.reach_number_);
    worker->set_unreached_text(std::string(member.reached_->message()));
  }
  if (member.failure_.ok()) return;
  worker->set_failure_code(static_cast<int>(member.failure_.code()));
  worker->set_failure_text(std::string(member.failure_.message()));
  member.failure_reported_ = true;
}

void WorkerMember::Link::Take(WorkerMember& member, const v1::MemberOrder& order) {
  const MutexLock lock(member.mutex_);
  switch (order.kind()) {
    case v1::MemberOrder::TRAIN: {
      GenerationOrder next{.generation = {.number = order.number(),
                                          .first_step = order.first_step(),
                                          .snapshot_every = order.snapshot_every(),
                                          .workers = {order.workers().begin(), order.workers().end()},
                                          .leaf_owners = {order.leaf_owners().begin(), order.leaf_owners().end()}},
                           .from_snapshot = order.from_snapshot(),
                           .ends_run = order.ends_run(),
                           .servers = {order.shards().begin(), order.shards().end()},
                           .run_id = order.text(),
                           .cause = order.cause()};
      const auto mine = std::ranges::find(next.generation.workers, member.id_);
      // A generation without this worker asks nothing of it.
      if (mine == next.generation.workers.end()) return;
      next.rank = static_cast<int>(mine - next.generation.workers.begin());
      member.order_ = std::move(next);
      // The order to end the one before may have been lost with a connection.
      member.cut_below_ = std::max(member.cut_below_.load(), order.number());
      break;
    }
    case v1::MemberOrder::STOP:
      member.stop_ = true;
      if (order.ends_run()) member.run_ends_ = true;
      break;
    case v1::MemberOrder::CUT:
      member.cut_below_ = order.number();
      break;
    case v1::MemberOrder::WAIT:
      member.is_spare_ = true;
      member.options_.say(order.text());
      break;
    case v1::MemberOrder::REACH:
      // It is repeated until it is obeyed.
      if (order.number() > member.reach_number_) {
        member.reach_ = {.number = order.number(), .shards = {order.shards().begin(), order.shards().end()}};
      }
      break;
    case v1::MemberOrder::GIVEN_UP:
      // It attends again by itself, as one that joins.
      member.options_.say(absl::StrCat("the coordinator has given this worker up: it ", order.text()));
      member.cut_below_ = member.training_ + 1;
      break;
    case v1::MemberOrder::END:
      member.end_ = order.code() == 0 ? absl::OkStatus()
                                      : absl::Status(static_cast<absl::StatusCode>(order.code()), order.text());
      // The shards end, too: an exchange would look for them until its deadline.
      if (order.code() != 0) member.refused_ = true;
      break;
    default:
      break;
  }
  member.changed_.NotifyAll();
}

void WorkerMember::Link::Refuse(WorkerMember& member, const absl::Status& why) {
  member.refused_ = true;
  const MutexLock lock(member.mutex_);
  // An order to end that came before says more than the refusal that follows it.
  if (!member.end_.has_value()) member.end_ = why;
  member.changed_.NotifyAll();
}

const char* WorkerMember::WhatToDo() const { return training_ > 0 ? kWhatToStart : kWhatToGive; }

std::string WorkerMember::WaitSentence(std::chrono::steady_clock::time_point since) const {
  const bool is_reached = link_->disconnected_for() == std::chrono::steady_clock::duration::zero();
  return StallSentence(
      std::chrono::steady_clock::now() - since, "waiting for a generation",
      absl::StrCat("the coordinator ", options_.coordinator,
                   is_reached ? " has begun none of which this worker has heard, and prints why"
                              : absl::StrCat(" cannot be reached: ", link_->trouble(), "; this worker tries for ",
                                             absl::FormatDuration(options_.join_deadline),
                                             " (--join_deadline_s): ", WhatToDo())));
}

void WorkerMember::ReachIfTold() {
  if (!reach_.has_value()) return;
  const ReachOrder order = *std::exchange(reach_, std::nullopt);
  reach_number_ = order.number;
  reached_.reset();
  // The link's thread needs the mutex for its reports, and it may take seconds to reach all shards.
  mutex_.Unlock();
  const absl::Status outcome = options_.reach(order.shards);
  mutex_.Lock();
  reached_ = outcome;
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
}

absl::StatusOr<std::optional<GenerationOrder>> WorkerMember::Next(const absl::Status& trouble) {
  const auto since = std::chrono::steady_clock::now();
  StallReport report(options_.say);
  const MutexLock lock(mutex_);
  ready_ = true;
  is_spare_ = false;
  trouble_ = trouble;
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
  while (true) {
    changed_.WaitFor(mutex_, kLook, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return end_.has_value() || (order_.has_value() && order_->generation.number > training_) || reach_.has_value();
    });
    if (end_.has_value()) {
      RETURN_IF_ERROR(*end_);
      return std::nullopt;
    }
    if (order_.has_value() && order_->generation.number > training_) break;
    ReachIfTold();
    // A spare knows from the coordinator why it waits, and needs no report of a stall.
    const bool is_long = std::chrono::steady_clock::now() - since >= absl::ToChronoNanoseconds(options_.stall_report);
    if (is_long && !is_spare_ && !report.IsOpen(0)) report.Open(0, since, WaitSentence(since));
    // The last report has said so.
    if (options_.asked_to_leave() && !run_ends_) return absl::CancelledError("asked to leave");
    if (absl::FromChrono(link_->disconnected_for()) > options_.join_deadline) {
      return absl::UnavailableError(absl::StrCat("the coordinator ", options_.coordinator, " cannot be reached within ",
                                                 absl::FormatDuration(options_.join_deadline), ": ", link_->trouble(),
                                                 ": ", WhatToDo()));
    }
  }
  report.Close(0, std::chrono::steady_clock::now());
  // An order to stop was about the generation before.
  ready_ = stop_ = false;
  trouble_ = absl::OkStatus();
  training_ = order_->generation.number;
  step_ = order_->generation.first_step;
  link_->ReportSoon(MemberLink::Then::kGoesOn);
  return std::exchange(order_, std::nullopt);
}

absl::StatusOr<bool> WorkerMember::AwaitEnd() {
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
  const MutexLock lock(mutex_);
  while (!end_.has_value()) {
    // A generation that comes next goes before an unreachable coordinator: the run has not ended.
    if (superseded()) return false;
    if (link_->disconnected_for() > options_.end_patience) return true;
    changed_.WaitFor(mutex_, kLook,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value() || superseded(); });
  }
  RETURN_IF_ERROR(*end_);
  return true;
}

void WorkerMember::OnStep(int64_t next_step, double step_seconds, double compute_seconds, int leaves) {
  // Only the training thread uses the deques. The link's thread reads the atomics.
  step_ = next_step;
  step_seconds_ = MedianWith(&all_seconds_, step_seconds);
  seconds_per_leaf_ = MedianWith(&leaf_seconds_, compute_seconds / leaves);
}

void WorkerMember::Fail(const absl::Status& why) {
  const MutexLock lock(mutex_);
  // END from the coordinator shows that the report has arrived. Without it the worker leaves after kFailurePatience.
  failure_ = why;
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
  changed_.WaitFor(mutex_, kFailurePatience,
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); });
}

}  // namespace starring
