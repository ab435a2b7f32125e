#include "server/shard/shard_rank.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/host/process_facts.h"
#include "common/job/leaf_shares.h"
#include "common/transport/check_conversation.h"
#include "common/transport/collectives.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

using v1::ExchangeMessage;

// How often deadlines are looked at.
constexpr std::chrono::milliseconds kTick(100);
// How long the last answers may take to leave: a worker that is gone never takes them.
constexpr std::chrono::seconds kLinger(5);

std::chrono::milliseconds DeadlineOf(int64_t ms) {
  return absl::ToChronoMilliseconds(BoundedDeadline(absl::Milliseconds(ms)));
}

v1::ProcessReport OwnReport(int shard) {
  v1::ProcessReport report;
  *report.mutable_facts() = ReadProcessFacts(v1::ProcessFacts::SERVER, shard);
  report.mutable_facts()->set_wire_version(kWireVersion);
  return report;
}

}  // namespace

ShardRank::ShardRank(std::unique_ptr<Transport> transport, Options options)
    : ShardRank(std::make_unique<HostTransport>(std::move(transport)), std::move(options)) {}

ShardRank::ShardRank(std::unique_ptr<HostTransport> transport, Options options)
    : options_(std::move(options)),
      rendezvous_(options_.shard, options_.shard_count, "",
                  [this](const Agreement& agreement, int) { return CheckAffordable(agreement); }),
      // The workers find and report this server's stalls. ShardJob detects stalls of workers, using the pump.
      pump_(transport.get(),
            {.progress = &progress_,
             .on_heard =
                 [this](int rank, const WorkState& state) {
                   if (job_ == nullptr || rank >= worker_count()) return;
                   ExchangeMessage fields;
                   fields.set_kind(ExchangeMessage::PROGRESS);
                   SetProgress(state, fields.mutable_progress());
                   Feed(rank, std::move(fields), {});
                 }},
            options_.shard_count),
      transport_(std::move(transport)) {
  CHECK_GE(worker_count(), 1);
  CHECK_EQ(pump_.rank(), worker_count() + options_.shard);
  // A server is in one phase for its whole life: peers only ask whether it responds.
  progress_.Enter(WorkPhase::kExchange, Clock::now());
}

absl::Status ShardRank::Run() {
  RETURN_IF_ERROR(Agree());
  if (was_check_) return AnswerCheck(pump_, OwnReport(options_.shard));
  absl::Status status = ShareMemory();
  if (status.ok()) status = Begin();
  if (status.ok() && options_.on_begin != nullptr) options_.on_begin();
  if (status.ok()) status = TakeStart();
  if (status.ok()) status = Serve();
  if (status.ok()) return EndJob();
  Log(absl::StrCat("the job failed: ", std::string(status.message())));
  pump_.Abort(status);  // no effect if another process has given up first
  return status;
}

absl::Status ShardRank::Agree() {
  const CollectiveOptions join = {.what = "joining", .deadline = options_.join_deadline, .with_servers = true};
  std::string mine;
  const absl::Status joined = TakeJoins();
  if (was_check_) return joined;
  if (!joined.ok()) {
    // Nothing works after a failure of the pump. A refusal is for rank 0, which tells all.
    if (!pump_.failure().ok()) return joined;
    mine = absl::StrCat(ProcessName(pump_.rank(), worker_count()), ": ", std::string(joined.message()));
  }
  RETURN_IF_ERROR(GatherTextToRoot(pump_, mine, join).status());
  std::string verdict;
  RETURN_IF_ERROR(SendTextFromRoot(pump_, verdict, join));
  if (verdict.empty()) return absl::OkStatus();
  pump_.PeersKnow();
  return absl::InvalidArgumentError(verdict);
}

// Every worker is compared with the first one, as over gRPC. All messages are taken before the first refusal.
absl::Status ShardRank::TakeJoins() {
  const CollectiveOptions join = {.what = "joining", .deadline = options_.join_deadline};
  std::vector<ShardJoin> heads(worker_count());
  std::vector<MessagePump::Token> tokens;
  for (int rank = 0; rank < worker_count(); ++rank) {
    tokens.push_back(pump_.Receive(rank, ControlTag::kShardJoin, sizeof(ShardJoin)));
  }
  RETURN_IF_ERROR(AwaitAll(pump_, tokens, join));
  for (int rank = 0; rank < worker_count(); ++rank) {
    std::ranges::copy(pump_.Take(tokens[rank]), std::as_writable_bytes(std::span(&heads[rank], 1)).begin());
    if (heads[rank].wire_version != kShardWireVersion) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " speaks version ", heads[rank].wire_version,
                                                     " of the wire, this server version ", kShardWireVersion,
                                                     ": start servers and workers of one build"));
    }
    // The length comes from another process, and is looked at before memory is taken.
    if (heads[rank].agreement_bytes > static_cast<uint64_t>(kJoinBytesMax)) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has an agreement of ",
                                                     heads[rank].agreement_bytes, " bytes, at most ", kJoinBytesMax));
    }
  }
  RETURN_IF_ERROR(TellCheck(heads));
  if (was_check_) return absl::OkStatus();
  tokens.clear();
  for (int rank = 0; rank < worker_count(); ++rank) {
    const auto bytes = static_cast<int64_t>(heads[rank].agreement_bytes);
    tokens.push_back(pump_.Receive(rank, ControlTag::kShardAgreement, bytes));
  }
  RETURN_IF_ERROR(AwaitAll(pump_, tokens, join));
  for (int rank = 0; rank < worker_count(); ++rank) {
    const ShardJoin& head = heads[rank];
    const std::vector<std::byte> agreement = pump_.Take(tokens[rank]);
    v1::JoinRequest request;
    request.set_rank(rank);
    // Over gRPC this number tells a worker from another one with its rank. Here the transport has one process of each.
    request.set_worker_id(static_cast<uint64_t>(rank) + 1);
    request.set_shard(head.shard);
    request.set_shard_count(head.shard_count);
    request.set_agreement(agreement.data(), agreement.size());
    request.set_join_deadline_ms(head.join_deadline_ms);
    request.set_exchange_deadline_ms(head.exchange_deadline_ms);
    request.set_stall_report_ms(head.stall_report_ms);
    request.set_lanes(1);
    RETURN_IF_ERROR(rendezvous_.Join(request));
    shares_memory_ = head.shares_memory != 0;  // the same for all workers that agree
  }
  if (rendezvous_.complete()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the workers have --world_size=", rendezvous_.agreement().world_size,
                                                 ", this server has ", worker_count(),
                                                 ": start all processes with the same"));
}

absl::Status ShardRank::TellCheck(const std::vector<ShardJoin>& heads) {
  was_check_ = heads[0].checks != 0;
  for (int rank = 1; rank < worker_count(); ++rank) {
    if ((heads[rank].checks != 0) == was_check_) continue;
    const absl::Status mixed =
        absl::InvalidArgumentError(absl::StrCat("rank ", was_check_ ? 0 : rank, " has --check, rank ",
                                                was_check_ ? rank : 0, " has not: give it to all workers or to none"));
    // The workers do not wait for the same messages, so this is no verdict.
    pump_.Abort(mixed);
    return mixed;
  }
  return absl::OkStatus();
}

absl::Status ShardRank::CheckAffordable(const Agreement& agreement) const {
  int64_t bytes = options_.memory_bytes_max;
  if (bytes == 0) {
    const absl::StatusOr<int64_t> available = options_.available_memory();
    // The servers of one job begin at the same time, and each finds the same memory free.
    const int servers = std::min(options_.servers_here(), options_.shard_count);
    bytes = available.ok() ? *available / servers : std::numeric_limits<int64_t>::max();
  }
  return CheckShardMemory(agreement, options_.shard, options_.shard_count, bytes);
}

absl::Status ShardRank::ShareMemory() {
  if (!shares_memory_) return absl::OkStatus();
  const HostArraysShape shape = {.element_count = buckets().element_count(),
                                 .bucket_count = buckets().bucket_count(),
                                 .micro_batches = rendezvous_.agreement().micro_batches,
                                 .worker_count = worker_count()};
  HostMemory::Options options = HostArraysMemory(shape);
  options.boot_id = options_.boot_id;
  ASSIGN_OR_RETURN(HostMemory::Outcome outcome,
                   HostMemory::Meet(pump_, options,
                                    {.what = "sharing memory with the other processes",
                                     .deadline = absl::Milliseconds(rendezvous_.join_deadline_ms()),
                                     .with_servers = true}));
  if (outcome.memory == nullptr) {
    Log(absl::StrCat("gradients and parameters are messages: ", outcome.refusal));
    return absl::OkStatus();
  }
  memory_ = std::move(outcome.memory);
  arrays_ = DivideHostMemory(shape, pump_.rank(), *memory_);
  transport_->Attach(memory_->board());
  Log("gradients and parameters are in shared memory");
  return absl::OkStatus();
}

absl::Status ShardRank::Begin() {
  Log("all workers have joined");
  const std::chrono::milliseconds stall_report(rendezvous_.stall_report_ms());
  ASSIGN_OR_RETURN(job_, ShardJob::Create({.agreement = rendezvous_.agreement(),
                                           .shard = options_.shard,
                                           .shard_count = options_.shard_count,
                                           .exchange_deadline = DeadlineOf(rendezvous_.exchange_deadline_ms()),
                                           .join_deadline = DeadlineOf(rendezvous_.join_deadline_ms()),
                                           .send = [this](Answer answer) { Answered(std::move(answer)); },
                                           .now = clock_.Read(Clock::now()),
                                           .stall_times = {.report_after = stall_report},
                                           .log = options_.log,
                                           .track = AddTrack(options_.trace, {.name = "shard"}),
                                           .metrics = options_.metrics,
                                           .parameters = arrays_.parameters,
                                           .sums_in_parts = true}));
  // The transport says when a worker is gone. To the job each has one lane, which is open as long as the job lasts.
  for (int rank = 0; rank < worker_count(); ++rank) job_->OnLaneOpen({.rank = rank, .lane = 0});
  return absl::OkStatus();
}

// Receives the start of the run from rank 0. When the barrier lets the workers go, every receive is posted.
absl::Status ShardRank::TakeStart() {
  const absl::Duration deadline = absl::Milliseconds(rendezvous_.join_deadline_ms());
  const CollectiveOptions start = {.what = "rank 0's parameters", .deadline = deadline, .with_servers = true};
  std::byte has_state{0};
  RETURN_IF_ERROR(Transfer(pump_, {.from = 0, .to = pump_.rank()}, {&has_state, 1}, start));
  const int vectors = has_state == std::byte{0} ? 0 : StateVectorCount(rendezvous_.agreement().optimizer);
  for (int b = 0; b < buckets().bucket_count(); ++b) {
    ExchangeMessage fields;
    fields.set_bucket(b);
    fields.set_kind(ExchangeMessage::INITIAL_STATE);
    for (int vector = 0; vector < vectors; ++vector) {
      fields.set_vector(vector);
      RETURN_IF_ERROR(TakeInitial(fields, SliceOf(b).size()));
    }
    fields.set_kind(ExchangeMessage::INITIAL_PARAMETERS);
    fields.set_vector(0);
    RETURN_IF_ERROR(TakeInitial(fields, SliceOf(b).size()));
    // At each meeting the deadlines of all ranks begin again, however long rank 0 sends.
    if ((b + 1) % kShardStartBuckets == 0) RETURN_IF_ERROR(Barrier(pump_, start));
  }
  scratch_ = {};
  // Receives write into the elements, so the vector has its size before the first one is posted.
  requests_.resize(worker_count());
  for (int rank = 0; rank < worker_count(); ++rank) PostRequest(rank);
  ServeBuckets();
  return Barrier(pump_, start);
}

absl::Status ShardRank::TakeInitial(ExchangeMessage fields, int64_t count) {
  if (count == 0) return absl::OkStatus();
  scratch_.resize(count);
  const absl::Duration deadline = absl::Milliseconds(rendezvous_.join_deadline_ms());
  for (int64_t begin = 0; begin < count; begin += kShardPieceElements) {
    // Each piece has the whole deadline, because a slice may be as long as memory allows.
    const auto piece = std::span(scratch_).subspan(begin, std::min(kShardPieceElements, count - begin));
    RETURN_IF_ERROR(Transfer(pump_, {.from = 0, .to = pump_.rank()}, std::as_writable_bytes(piece),
                             {.what = "rank 0's parameters", .deadline = deadline}));
  }
  Feed(0, std::move(fields), std::as_bytes(std::span(scratch_)));
  return job_->status();
}

absl::Status ShardRank::Serve() {
  Clock::time_point tick = Clock::now() + kTick;
  while (job_->state() == ShardJob::State::kRunning) {
    // The clock is looked at in every round: a busy server keeps its deadlines too.
    const auto is_due = [&] {
      return job_->state() != ShardJob::State::kRunning || job_->is_summing() || fetch_.has_value() ||
             Clock::now() >= tick;
    };
    const absl::Status status = pump_.PumpUntil(is_due, tick, "");
    // Without a message it is only the tick.
    if (!status.ok() && !(absl::IsDeadlineExceeded(status) && status.message().empty())) return status;
    RETURN_IF_ERROR(SumParts(tick));
    // Not where the request arrives: a transfer pumps, and completions must not pump inside each other.
    if (fetch_.has_value()) RETURN_IF_ERROR(SendState(*std::exchange(fetch_, std::nullopt)));
    if (Clock::now() < tick) continue;
    job_->CheckDeadlines(clock_.Read(Clock::now()));
    TellStatus();
    tick = Clock::now() + kTick;
  }
  TellStatus();
  return job_->status();
}

absl::Status ShardRank::SumParts(Clock::time_point until) {
  while (job_->is_summing() && Clock::now() < until) {
    if (const std::optional<int> bucket = job_->SumPart(); bucket.has_value()) {
      if (memory_ != nullptr) {
        TellUpdate(*bucket);
      } else {
        const int piece = summing_.at(*bucket);
        summing_.erase(*bucket);
        star_->OnFinished(piece);
      }
    }
    // With a thousand workers a part takes milliseconds, and 64 of them the patience of a roll call.
    RETURN_IF_ERROR(pump_.Pump(MessagePump::Listening::kAlways).status());
  }
  return absl::OkStatus();
}

absl::Status ShardRank::SendState(const Fetch& fetch) {
  const CollectiveOptions options = {.what = "rank 0 to take the optimizer's state",
                                     .deadline = absl::Milliseconds(rendezvous_.exchange_deadline_ms())};
  for (int64_t begin = 0; begin < fetch.count; begin += kShardPieceElements) {
    // A piece is made when the one before it has left, so the state needs no second copy.
    scratch_.resize(std::min(kShardPieceElements, fetch.count - begin));
    fetch.make(begin, scratch_);
    RETURN_IF_ERROR(
        Transfer(pump_, {.from = pump_.rank(), .to = 0}, std::as_writable_bytes(std::span(scratch_)), options));
  }
  return absl::OkStatus();
}

// Every worker has finished. The process may end when the last answers have left.
absl::Status ShardRank::EndJob() {
  Log("all workers have finished");
  const auto have_left = [&] {
    return std::ranges::all_of(finished_, [&](MessagePump::Token token) { return pump_.IsComplete(token); });
  };
  // A worker may have taken its answer and left, so an error here means no more than that the others are told too.
  (void)pump_.PumpUntil(have_left, Clock::now() + kLinger, "");
  return absl::OkStatus();
}

// The operations that the star does not post: a rank's request, and after these a bucket's arrivals.
void ShardRank::OnCompletion(uint64_t operation) {
  const auto number = static_cast<int>(operation);
  if (number < worker_count()) return OnRequest(number);
  SumInMemory(number - worker_count());
}

void ShardRank::AwaitArrivals(int bucket) {
  const int64_t steps = next_steps_[bucket] + 1 - rendezvous_.agreement().first_step;
  // The board counts arrivals since the job began, so those of all steps up to this one are waited for.
  transport_->PostWait(memory_->board()->arrivals(bucket), steps * worker_count(),
                       {.poster = this, .operation = static_cast<uint64_t>(worker_count()) + bucket});
}

void ShardRank::SumInMemory(int bucket) {
  const StarSum sum = SumOf(next_steps_[bucket], bucket);
  const ElementRange slice = SliceOf(bucket);
  for (int i = 0; i < static_cast<int>(contributors_.size()); ++i) {
    OnContribution(sum, i, std::as_bytes(arrays_.gradients[i].subspan(slice.begin, slice.size())));
  }
  if (job_->state() == ShardJob::State::kRunning && sealed_.contains({bucket, sum.labels.step})) TellUpdate(bucket);
}

void ShardRank::TellUpdate(int bucket) {
  sealed_.erase({bucket, next_steps_[bucket]});  // the workers read it in place
  ++next_steps_[bucket];
  AwaitArrivals(bucket);
  HostBoard& board = *memory_->board();
  const int64_t steps = next_steps_[bucket] - rendezvous_.agreement().first_step;
  // The last owner of the bucket wakes the workers. Before that the bucket is not complete.
  if (board.Update(bucket) < steps * owners().OwnersOf(buckets().sum(bucket))) return;
  for (int rank = 0; rank < worker_count(); ++rank) board.Ring(rank);
}

void ShardRank::ServeBuckets() {
  contributors_ = ContributorsOf(LeafOwnersOf(rendezvous_.agreement()));
  submit_step_ = rendezvous_.agreement().first_step;
  next_steps_.assign(buckets().bucket_count(), submit_step_);
  if (memory_ == nullptr) return CreateStar();
  for (int b = 0; b < buckets().bucket_count(); ++b) {
    if (SliceOf(b).size() > 0) AwaitArrivals(b);
  }
}

void ShardRank::CreateStar() {
  // Without a window, so that a worker that is slow does not hold up the answers to the others.
  Star::Options star = {.transport = transport_.get(),
                        .sink = this,
                        .server_count = options_.shard_count,
                        .first_tag = MessagePump::kFirstDataTag,
                        .contributors = {},
                        .message_bytes_max = buckets().bucket_bytes(),
                        .slot_count = ShardSlots(buckets().bucket_count()),
                        .window_bytes = 0,
                        // They are in buffers of the job, in which no other step's are while they leave.
                        .results_are_replaced = false,
                        .memory = {},
                        .shared = {}};
  for (const Contributor& one : contributors_) star.contributors.push_back({.rank = one.rank, .node = one.node});
  for (int b = 0; b < buckets().bucket_count(); ++b) {
    const int64_t bytes = SliceOf(b).size() * static_cast<int64_t>(sizeof(float));
    star.sizes.piece_bytes_max = std::max(star.sizes.piece_bytes_max, bytes);
  }
  if (star.sizes.piece_bytes_max == 0) return;  // nobody contributes to this shard
  star_ = std::make_unique<Star>(star);
  SubmitBuckets();
}

StarSum ShardRank::SumOf(int64_t step, int bucket) const {
  return {.number = bucket,
          .elements = buckets().bucket(bucket),
          .owners = owners(),
          .labels = {.step = step, .bucket = bucket}};
}

// Submits the sums that follow, each bucket's as soon as the step before is summed.
void ShardRank::SubmitBuckets() {
  // The loop ends: without any slice there is no star, and a bucket with a slice waits here until its sum is ready.
  while (next_steps_[submit_bucket_] == submit_step_) {
    const int b = submit_bucket_;
    const StarSum sum = SumOf(submit_step_, b);
    submit_bucket_ = (b + 1) % buckets().bucket_count();
    if (submit_bucket_ == 0) ++submit_step_;
    if (SliceOf(b).size() > 0) {
      star_->Submit(sum);
    } else {
      ++next_steps_[b];
    }
  }
}

std::span<std::byte> ShardRank::Allocate(int64_t bytes) {
  return std::as_writable_bytes(allocated_.emplace_back(bytes / static_cast<int64_t>(sizeof(float))).span());
}

// A slice longer than one message of gRPC's wire goes to the job in parts, as it would come there. The contribution's
// place is not used again before the job has summed it.
void ShardRank::OnContribution(const StarSum& sum, int contributor, std::span<const std::byte> contribution) {
  ExchangeMessage fields;
  fields.set_kind(ExchangeMessage::GRADIENT);
  fields.set_step(sum.labels.step);
  fields.set_bucket(static_cast<int>(sum.number));
  fields.set_node(contributors_[contributor].node);
  Feed(contributors_[contributor].rank, std::move(fields), contribution);
  if (star_ != nullptr && job_->state() != ShardJob::State::kRunning) star_->Stop();
}

// The job has summed a short slice with its last contribution, unless it has failed: then no answer leaves.
StarSink::Finished ShardRank::FinishAll(const StarSum& sum, const Output& output,
                                        std::span<std::byte* const> /*contributions*/) {
  const auto bucket = static_cast<int>(sum.number);
  if (job_->state() != ShardJob::State::kRunning || sealed_.contains({bucket, sum.labels.step})) return Finished::kNow;
  CHECK(job_->is_summing()) << bucket;
  CHECK(summing_.emplace(bucket, output.piece).second) << bucket;
  return Finished::kLater;
}

// The star only sends it.
std::span<std::byte> ShardRank::Result(const StarSum& sum, ElementRange /*range*/) {
  const auto found = sealed_.find({static_cast<int>(sum.number), sum.labels.step});
  if (found == sealed_.end()) return {};
  const std::span<const std::byte> bytes = found->second.bytes;
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

void ShardRank::OnReady(const StarSum& sum) {
  ++next_steps_[sum.number];
  SubmitBuckets();
}

void ShardRank::OnDone(const StarSum& sum) { sealed_.erase({static_cast<int>(sum.number), sum.labels.step}); }

void ShardRank::Feed(int rank, ExchangeMessage fields, std::span<const std::byte> payload) {
  const Clock::time_point now = clock_.Read(Clock::now());
  const int64_t bytes = std::ssize(payload);
  for (int part = 0; part < PartCount(bytes); ++part) {
    fields.set_part(part);
    ReceivedMessage message = {.fields = fields, .payload = {}, .payload_bytes = PartBytes(bytes, part), .keeper = {}};
    // No keeper: the memory lasts until the job has summed it, or copied it.
    if (message.payload_bytes > 0) message.payload.push_back(payload.subspan(PartBegin(part), message.payload_bytes));
    job_->OnMessage({.rank = rank, .lane = 0}, message, now);
  }
}

void ShardRank::OnRequest(int rank) {
  // The copy frees the place for the rank's next request, which may be on its way already.
  const ShardRequest request = requests_[rank];
  PostRequest(rank);
  ExchangeMessage fields;
  switch (request.kind) {
    case ShardRequest::Kind::kFetchState:
      // One copy is made at a time, for rank 0, which writes the checkpoint.
      if (rank != 0 || fetch_.has_value()) {
        return job_->Fail(
            absl::InvalidArgumentError(absl::StrCat("shard ", options_.shard, " got a wrong message from rank ", rank,
                                                    ": state is asked by rank 0 alone, one vector at a time")));
      }
      fields.set_kind(ExchangeMessage::FETCH_STATE);
      fields.set_bucket(request.bucket);
      fields.set_vector(request.vector);
      break;
    case ShardRequest::Kind::kFinish:
      fields.set_kind(ExchangeMessage::FINISH);
      break;
    default:
      return job_->Fail(absl::InvalidArgumentError(absl::StrCat("shard ", options_.shard, " got a request of kind ",
                                                                static_cast<int>(request.kind), " from rank ", rank,
                                                                ": start servers and workers of one build")));
  }
  Feed(rank, std::move(fields), {});
}

void ShardRank::Answered(Answer answer) {
  switch (answer.fields.kind()) {
    case ExchangeMessage::PARAMETERS:
      // The same to every worker; the star sends it.
      sealed_[{answer.fields.bucket(), answer.fields.step()}] = {.bytes = answer.payload,
                                                                 .keeper = std::move(answer.keeper)};
      return;
    case ExchangeMessage::STATE:
      fetch_ = Fetch{.make = std::move(answer.make), .count = answer.made_count};
      return;
    case ExchangeMessage::FINISHED: {
      const std::byte one{1};
      finished_.push_back(pump_.Send(answer.to.rank, ControlTag::kShardAnswer, {&one, 1}));
      return;
    }
    case ExchangeMessage::ASK_PROGRESS:
      return pump_.AskProgress(answer.to.rank);
    default:
      // A worker knows without an answer that what it sent has arrived; it finds stalls itself (PeerWatch); and it
      // learns from Run's Abort that the job has failed.
      return;
  }
}

void ShardRank::PostRequest(int rank) {
  transport_->PostReceive(rank, static_cast<int>(ControlTag::kShardRequest),
                          std::as_writable_bytes(std::span(&requests_[rank], 1)),
                          {.poster = this, .operation = static_cast<uint64_t>(rank)});
}

void ShardRank::TellStatus() const {
  if (options_.on_status == nullptr) return;
  v1::GetStatusReply status;
  job_->Describe(&status);
  options_.on_status(status);
}

void ShardRank::Log(const std::string& line) const {
  if (options_.log != nullptr) options_.log(line);
}

}  // namespace starring
