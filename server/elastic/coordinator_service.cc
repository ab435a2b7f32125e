#include "server/elastic/coordinator_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/job_spec.h"
#include "common/security/sha256.h"
#include "common/wire/exchange_message.h"
#include "server/elastic/member_report.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status CheckSize(const v1::MemberReport& report) {
  const auto bytes = static_cast<int64_t>(report.ByteSizeLong());
  if (bytes <= kJoinBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a member's report of ", bytes, " bytes, at most ", kJoinBytesMax));
}

v1::MemberOrder::Kind KindOf(Order::Kind kind) {
  switch (kind) {
    case Order::Kind::kPrepare:
      return v1::MemberOrder::PREPARE;
    case Order::Kind::kServe:
      return v1::MemberOrder::SERVE;
    case Order::Kind::kTrain:
      return v1::MemberOrder::TRAIN;
    case Order::Kind::kStop:
      return v1::MemberOrder::STOP;
    case Order::Kind::kCut:
      return v1::MemberOrder::CUT;
    case Order::Kind::kWait:
      return v1::MemberOrder::WAIT;
    case Order::Kind::kKeep:
      return v1::MemberOrder::KEEP;
    case Order::Kind::kReach:
      return v1::MemberOrder::REACH;
    case Order::Kind::kGivenUp:
      return v1::MemberOrder::GIVEN_UP;
    case Order::Kind::kEnd:
      return v1::MemberOrder::END;
  }
  return v1::MemberOrder::UNKNOWN;
}

v1::MemberOrder ToProto(const Order& order, const v1::RunTerms& terms) {
  v1::MemberOrder proto;
  proto.set_kind(KindOf(order.kind));
  proto.set_number(order.generation.number);
  proto.set_first_step(order.generation.first_step);
  proto.set_snapshot_every(order.generation.snapshot_every);
  for (const uint64_t worker : order.generation.workers) proto.add_workers(worker);
  for (const int owner : order.generation.leaf_owners) proto.add_leaf_owners(owner);
  proto.set_from_snapshot(order.from_snapshot);
  proto.set_ends_run(order.ends_run);
  for (const std::string& address : order.shards) proto.add_shards(address);
  proto.set_text(order.text);
  proto.set_cause(order.cause);
  if (order.kind == Order::Kind::kEnd) {
    proto.set_code(static_cast<int>(order.end.code()));
    proto.set_text(std::string(order.end.message()));
  }
  // A shard that has just come knows nothing of the run.
  if (order.kind == Order::Kind::kPrepare || order.kind == Order::Kind::kServe) *proto.mutable_terms() = terms;
  return proto;
}

// The parts of an agreement, so that the refusal of another run's log says which one differs. Flags come first, because
// they decide the others, and have the layer file's digest. The known answer comes last: it follows from all of them.
std::vector<GenerationLog::Run::Part> PartsOf(const Agreement& agreement) {
  std::string flags, data, machine, answer;
  for (const auto& [name, value] : agreement.agreed_flags) {
    const bool is_fact = absl::StrContains(name, '.');  // JobSpec::agreed_flags
    std::string& part = !is_fact                                  ? flags
                        : absl::StartsWith(name, "data.")         ? data
                        : absl::StartsWith(name, "known_answer.") ? answer
                                                                  : machine;
    absl::StrAppend(&part, name, "=", value, "\n");
  }
  // 64 bits tell the parts apart. The digest of all of them has its full length (GenerationLog::Run::job).
  const auto digest = [](const std::string& text) { return Sha256Hex(text).substr(0, 16); };
  return {{"flags", digest(flags), "start servers and workers with the flags of the run in the log"},
          {"model", digest(agreement.layout_hash), "give workers the model file and the build of the run in the log"},
          {"data", digest(data), "give workers the data files of the run in the log"},
          {"machine", digest(machine),
           "the bits would be others: start workers with the build, the libraries and the kind of machine that the run "
           "in the log had"},
          {"answer", digest(answer), "start workers on a machine as that run's"}};
}

}  // namespace

CoordinatorService::CoordinatorService(Options options)
    : options_(std::move(options)),
      events_{[this](AttendStream* stream) { OnAccepted(*stream); },
              [this](AttendStream* stream, const v1::MemberReport& report) { OnReport(stream, report); },
              [this](AttendStream* stream, AttendStream::End end) { OnGone(stream, end); }},
      run_events_{[this](RunCall* call) { OnRun(call); }, [this](RunCall* call) { run_calls_.erase(call); }},
      refusals_(options_.log) {}

void CoordinatorService::Listen(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  since_ = Clock::now();
  LookAtLog();
  ListenForMember();
  ListenForRun();
}

void CoordinatorService::LookAtLog() {
  const GenerationLog::Glimpse seen = GenerationLog::Peek(options_.state_dir);
  // Without a run id the log may belong to any run.
  const bool is_ours = !options_.run_id.empty() && seen.name == options_.run_id;
  progress_ = is_ours ? seen.progress : GenerationLog::Progress::kNone;
  // The previous coordinator died before it had told all shards the end.
  if (progress_ == GenerationLog::Progress::kEnded && !ended_.has_value()) EndBeforeBegin(absl::OkStatus());
}

void CoordinatorService::EndBeforeBegin(const absl::Status& status) {
  ended_ = status;
  for (const auto& [id, shard] : early_shards_) Send(id, {.kind = Order::Kind::kEnd, .end = status});
}

void CoordinatorService::ListenForMember() {
  auto stream = std::make_unique<AttendStream>(&events_);
  stream->Accept(&service_, queue_);
  streams_.emplace(stream.get(), std::move(stream));
}

void CoordinatorService::ListenForRun() {
  auto call = std::make_unique<RunCall>(&run_events_, [this](auto* context, auto* request, auto* responder, void* tag) {
    service_.RequestGetRun(context, request, responder, queue_, queue_, tag);
  });
  run_calls_.emplace(call.get(), std::move(call));
}

// As ParameterServer::Core::OnLaneAccepted.
void CoordinatorService::OnAccepted(const AttendStream& stream) {
  // gRPC accepts a stream only for a request that waits, so the next request comes first.
  ListenForMember();
  const std::string peer = stream.peer();
  const auto is_silent = [&](const auto& entry) {
    const AttendStream& one = *entry.first;
    return one.accepted_at().has_value() && !one.member.has_value() && one.peer() == peer;
  };
  if (std::ranges::count_if(streams_, is_silent) > kStreamsPerConnectionMax) options_.cut(peer);
}

void CoordinatorService::OnReport(AttendStream* stream, const v1::MemberReport& report) {
  const absl::Status status = stream->member.has_value() ? Take(*stream, report) : Admit(stream, report);
  if (!status.ok()) {
    refusals_.Add(absl::StrCat("refused a member from ", stream->peer(), ": ", std::string(status.message())),
                  Clock::now());
    stream->Close(status);
  }
  LookForEnd();
}

absl::Status CoordinatorService::Take(const AttendStream& stream, const v1::MemberReport& report) {
  RETURN_IF_ERROR(CheckSize(report));
  if (report.has_shard() == report.has_worker() || report.has_shard() != stream.shard.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(stream.name, " is a ", stream.shard.has_value() ? "shard" : "worker",
                                                   ", and its report is not that of one"));
  }
  const uint64_t id = *stream.member;
  if (report.has_worker()) {
    ASSIGN_OR_RETURN(const WorkerReport worker, ReadWorkerReport(report.worker()));
    if (coordinator_ != nullptr) coordinator_->OnWorker(id, worker, Clock::now());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const ShardReport shard, ReadShardReport(report.shard(), options_.shard_count));
  if (shard.shard != *stream.shard) {
    return absl::InvalidArgumentError(
        absl::StrCat(stream.name, " is shard ", *stream.shard, ", and reports as shard ", shard.shard));
  }
  if (const auto early = early_shards_.find(id); early != early_shards_.end()) early->second.report = shard;
  if (coordinator_ != nullptr) coordinator_->OnShard(id, shard, Clock::now());
  return absl::OkStatus();
}

absl::Status CoordinatorService::Admit(AttendStream* stream, const v1::MemberReport& report) {
  const v1::MemberReport::Hello& hello = report.hello();
  // Before the checks below, whose refusals tell a stranger about the run.
  RETURN_IF_ERROR(options_.admission->Check(kAttendMethod, report, stream->peer()));
  RETURN_IF_ERROR(CheckSize(report));
  if (hello.member_id() == 0 || hello.name().size() > kMemberNameBytesMax ||
      report.has_shard() == report.has_worker()) {
    return absl::InvalidArgumentError("the first report of a member says who it is, and its state as shard or worker");
  }
  // A member that names no run joins this coordinator's run.
  if (!hello.run_id().empty() && hello.run_id() != options_.run_id) {
    return absl::FailedPreconditionError(absl::StrCat("this is the coordinator of run \"", options_.run_id, "\", ",
                                                      hello.name(), " belongs to run \"", hello.run_id(), "\""));
  }
  const uint64_t id = hello.member_id();
  if (const auto found = members_.find(id); found != members_.end()) {
    AttendStream* const older = found->second;
    if (older->name != hello.name()) {
      return absl::AlreadyExistsError(
          absl::StrCat(older->name, " has the number of ", hello.name(), " already: start the latter again"));
    }
    // The process has a new connection, and the loss of its older one has not been noticed yet.
    Detach(older);
    older->Cancel();
  }
  // Its first orders are sent while it is added.
  members_[id] = stream;
  absent_.erase(id);
  stream->name = hello.name();
  if (report.has_shard()) stream->shard = report.shard().shard();
  const absl::Status status =
      report.has_shard() ? AdmitShard(hello, report.shard()) : AdmitWorker(hello, report.worker());
  if (!status.ok()) {
    members_.erase(id);
    return status;
  }
  stream->member = id;
  options_.keep(stream->peer());
  return absl::OkStatus();
}

absl::Status CoordinatorService::AdmitShard(const v1::MemberReport::Hello& hello,
                                            const v1::MemberReport::Shard& proto) {
  if (hello.shard_count() != options_.shard_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(hello.name(), " has --shard_count=", hello.shard_count(), ", this server ", options_.shard_count));
  }
  ASSIGN_OR_RETURN(const ShardReport report, ReadShardReport(proto, options_.shard_count));
  const uint64_t id = hello.member_id();
  if (coordinator_ != nullptr) return coordinator_->AddShard(id, hello.name(), report, Clock::now());
  // A coordinator that does not get the log ends only its own shard. The other shards belong to the coordinator that
  // has the log.
  if (report.shard != 0) RETURN_IF_ERROR(CheckLock());
  if (ended_.has_value()) {
    Send(id, {.kind = Order::Kind::kEnd, .end = *ended_});
  } else {
    early_shards_[id] = {.name = hello.name(), .report = report};
  }
  return absl::OkStatus();
}

absl::Status CoordinatorService::AdmitWorker(const v1::MemberReport::Hello& hello,
                                             const v1::MemberReport::Worker& proto) {
  ASSIGN_OR_RETURN(WorkerReport report, ReadWorkerReport(proto));
  report.first_step = hello.terms().first_step();
  const uint64_t id = hello.member_id();
  if (coordinator_ == nullptr) RETURN_IF_ERROR(CheckLock());
  // A worker that has trained is told how the run has ended. A worker that has just started is refused below if the run
  // had ended well, before this process began. The log's error says what to do for a new run.
  if (coordinator_ == nullptr && ended_.has_value() && (report.generation > 0 || !ended_->ok())) {
    Send(id, {.kind = Order::Kind::kEnd, .end = *ended_});
    return absl::OkStatus();
  }
  if (coordinator_ == nullptr) RETURN_IF_ERROR(Begin(hello.terms()));
  RETURN_IF_ERROR(CompareAgreements(worker_count_, hello.terms().agreement(), 0, terms_.agreement()));
  ++worker_count_;
  return coordinator_->AddWorker(id, hello.name(), report, Clock::now());
}

absl::Status CoordinatorService::CheckLock() {
  // The log alone shows that a run has ended; reading it needs no lock.
  if (lock_.has_value() || options_.state_dir.empty() || progress_ == GenerationLog::Progress::kEnded) {
    return absl::OkStatus();
  }
  absl::StatusOr<FolderLock> lock = GenerationLog::Lock(options_.state_dir, absl::ZeroDuration());
  if (!lock.ok()) return absl::UnavailableError(lock.status().message());  // the member tries again
  lock_.emplace(*std::move(lock));
  // The lock's previous holder may have gone on with the run, or ended it, since this coordinator looked.
  LookAtLog();
  return absl::OkStatus();
}

absl::Status CoordinatorService::Begin(const v1::RunTerms& terms) {
  ASSIGN_OR_RETURN(const Agreement agreement, ParseAgreement(terms.agreement()), "the terms of the first worker");
  if (agreement.micro_batches < 1 || terms.steps_per_epoch() < 1 || terms.first_step() < 0 ||
      terms.end_step() < terms.first_step() || terms.end_step() > kStepMax) {
    return absl::InvalidArgumentError("the terms of the first worker are no elastic run's: start it with --elastic");
  }
  const GenerationLog::Run run{.name = options_.run_id,
                               .leaves = agreement.micro_batches,
                               .shards = options_.shard_count,
                               .job = Sha256Hex(terms.agreement()),
                               .first_step = terms.first_step(),
                               .parts = PartsOf(agreement)};
  // The lock stays here: a run that is refused must not let another coordinator in.
  ASSIGN_OR_RETURN(log_, GenerationLog::Open(options_.state_dir, run, lock_.has_value() ? &*lock_ : nullptr));
  if (!log_->is_locked() && !options_.state_dir.empty() && options_.log != nullptr) {
    options_.log(absl::StrCat("the file system of --state_dir=", options_.state_dir,
                              " has no locks: see to it that no other coordinator uses that folder"));
  }
  terms_ = terms;
  // std::chrono compares in nanoseconds, and knows no infinite time.
  const auto bounded = [](absl::Duration time) {
    return absl::ToChronoMilliseconds(std::min(time, absl::Hours(24 * 365)));
  };
  const Time now = Clock::now();
  coordinator_ = std::make_unique<Coordinator>(
      Coordinator::Options{.shard_count = options_.shard_count,
                           .leaves = agreement.micro_batches,
                           .first_step = log_->first_step(),
                           .end_step = terms.end_step(),
                           .first_workers = options_.first_workers,
                           .min_workers = options_.min_workers,
                           .times = options_.times,
                           .start_deadline = bounded(options_.start_deadline),
                           .waited = now - since_,
                           .join_deadline = bounded(options_.loss_deadline),
                           .log = log_.get(),
                           .send = [this](uint64_t member, const Order& order) { Send(member, order); },
                           .say = options_.log,
                           .now = now});
  // Only now is it known whether the shards that came early fit this run.
  for (const auto& [id, shard] : std::exchange(early_shards_, {})) {
    const absl::Status status = coordinator_->AddShard(id, shard.name, shard.report, Clock::now());
    if (status.ok() || !members_.contains(id)) continue;
    AttendStream* const stream = members_[id];
    members_.erase(id);
    stream->member.reset();
    stream->Close(status);
  }
  return absl::OkStatus();
}

void CoordinatorService::Send(uint64_t member, const Order& order) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  AttendStream* const stream = found->second;
  v1::MemberOrder proto = ToProto(order, terms_);
  if (order.kind == Order::Kind::kTrain) {
    // A generation has a run id of its own, so that no worker of another one joins it at the servers.
    proto.set_text(absl::StrCat(options_.run_id, "/", order.generation.number));
  }
  stream->Send(proto);
  if (order.kind == Order::Kind::kEnd) {
    // On a stream that is closing the order is lost, and comes again when the member is back.
    if (stream->closing()) return;
    stream->ends_run = true;
    if (stream->shard.has_value()) shards_told_.insert(*stream->shard);
    stream->Close(absl::OkStatus());
  }
  if (order.kind != Order::Kind::kGivenUp) return;
  // Whether the process reads this order or not, it is no member any more. It may attend again.
  members_.erase(found);
  absent_[member] = Clock::now();
  stream->member.reset();
  stream->Close(absl::AbortedError(absl::StrCat("given up: ", order.text)));
}

void CoordinatorService::Detach(AttendStream* stream) {
  const std::optional<uint64_t> id = std::exchange(stream->member, std::nullopt);
  if (!id.has_value()) return;
  const auto found = members_.find(*id);
  if (found == members_.end() || found->second != stream) return;
  members_.erase(found);
  absent_[*id] = Clock::now();
  early_shards_.erase(*id);
  if (coordinator_ != nullptr) coordinator_->OnDisconnect(*id, Clock::now());
}

void CoordinatorService::OnGone(AttendStream* stream, AttendStream::End end) {
  const std::optional<uint64_t> id = stream->member;
  Detach(stream);
  // The member has read that the run has ended, and does not come again.
  if (id.has_value() && stream->ends_run && end == AttendStream::End::kOrderly) absent_.erase(*id);
  streams_.erase(stream);
}

bool CoordinatorService::has_told_all() const {
  const auto is_open = [](const auto& entry) { return entry.first->accepted_at().has_value(); };
  return ended_.has_value() && std::ssize(shards_told_) >= options_.shard_count && absent_.empty() &&
         std::ranges::none_of(streams_, is_open);
}

void CoordinatorService::Tick(Time now) {
  for (const auto& [stream, owner] : streams_) {
    // Closing only begins here; OnGone takes the stream out of the map, from another event. A member's stream stays for
    // as long as the member is one. A stream whose last orders are not read is cut, member or not.
    if (!stream->accepted_at().has_value() || (stream->member.has_value() && !stream->closing())) continue;
    const auto since = stream->closing() ? *stream->closing_since() : *stream->accepted_at();
    if (absl::FromChrono(now - since) <= options_.hello_deadline) continue;
    if (stream->closing()) {
      stream->Cancel();
    } else {
      stream->Close(absl::DeadlineExceededError("no report on this stream in time"));
    }
  }
  std::erase_if(absent_, [&](const auto& entry) { return now - entry.second > kAbsence * options_.times.gone; });
  if (coordinator_ != nullptr) coordinator_->Tick(now);
  LookForEnd();
  if (coordinator_ != nullptr || ended_.has_value()) return;
  if (const absl::Status status = AwaitRun(now); !status.ok()) EndBeforeBegin(status);
}

absl::Status CoordinatorService::AwaitRun(Time now) {
  const absl::Duration age = absl::FromChrono(now - since_);
  // The second of two coordinators must end when it is started, not when its first worker comes. The ticks do the
  // waiting, because this thread has others to serve.
  if (const absl::Status lock = CheckLock(); !lock.ok()) {
    return age > GenerationLog::kLockPatience ? absl::FailedPreconditionError(lock.message()) : absl::OkStatus();
  }
  if (ended_.has_value()) return absl::OkStatus();  // by the coordinator that had the lock
  const bool is_new = progress_ == GenerationLog::Progress::kNone;
  const absl::Duration deadline = is_new ? options_.start_deadline : options_.loss_deadline;
  if (age < deadline) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no worker has come ", is_new ? "" : "back ", "within ", absl::FormatDuration(deadline)));
}

bool CoordinatorService::EndRun(Time now) {
  if (coordinator_ == nullptr) return false;
  coordinator_->EndRun(now);
  LookForEnd();
  return true;
}

void CoordinatorService::LookForEnd() {
  if (coordinator_ != nullptr && coordinator_->ended().has_value()) ended_ = coordinator_->ended();
}

void CoordinatorService::OnRun(RunCall* call) {
  ListenForRun();
  if (const absl::Status status = options_.admission->Check(kGetRunMethod, call->request(), call->peer());
      !status.ok()) {
    call->Refuse(status);
    return;
  }
  options_.keep(call->peer());
  v1::GetRunReply reply;
  if (coordinator_ != nullptr) {
    const Coordinator::Status status = coordinator_->Describe();
    reply.set_generation(status.generation);
    reply.set_first_step(status.first_step);
    reply.set_step(status.step);
    reply.set_end_step(terms_.end_step());
    reply.set_changing(status.changing);
    reply.set_cause(status.cause);
    for (const Coordinator::MemberStatus& member : status.members) {
      v1::GetRunReply::Member* const proto = reply.add_members();
      proto->set_name(member.name);
      proto->set_what(member.what);
    }
    for (const int shard : status.missing_shards) reply.add_missing_shards(shard);
    for (const int64_t step : status.snapshots) reply.add_snapshots(step);
  } else {
    reply.set_changing(true);
    reply.set_cause("no worker has come");
  }
  call->Answer(reply);
}

}  // namespace starring
