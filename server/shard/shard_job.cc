#include "server/shard/shard_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/generation.h"
#include "common/reduce/owner_map.h"
#include "common/wire/exchange_message.h"
#include "common/wire/shared_memory.h"

namespace starring {
namespace {

using v1::ExchangeMessage;

// An answer's fields: those by which the worker recognises its request.
ExchangeMessage AnswerTo(const ExchangeMessage& request, ExchangeMessage::Kind kind) {
  ExchangeMessage fields;
  fields.set_kind(kind);
  fields.set_step(request.step());
  fields.set_bucket(request.bucket());
  fields.set_vector(request.vector());
  fields.set_node(request.node());
  return fields;
}

// Why the job ends when `rank` gives up. If that rank misses a peer, the others get the same code: their exit codes
// then say that they miss one too, and a launcher does not take them for the cause.
absl::Status GivenUp(int rank, const ExchangeMessage& abort) {
  const auto code = static_cast<absl::StatusCode>(abort.code());
  const bool misses_peer = code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
  return absl::Status(misses_peer ? code : absl::StatusCode::kAborted,
                      absl::StrCat("rank ", rank, " gave up: ", abort.text()));
}

// The elements that the shard owns, by bucket.
std::vector<ElementRange> OwnedRanges(const ShardJob::Options& options) {
  const BucketMap& buckets = options.agreement.buckets;
  const OwnerMap owners = OwnerMap::ShardRanges(options.shard_count);
  std::vector<ElementRange> slices;
  for (int b = 0; b < buckets.bucket_count(); ++b) {
    slices.push_back(owners.RangeOf(buckets.sum(b), options.shard));
  }
  return slices;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardJob>> ShardJob::Create(Options options) {
  // The job keeps its options, which must not keep the memory of a snapshot that has been copied.
  const std::shared_ptr<const Snapshot> start = std::exchange(options.start, nullptr);
  const Agreement& agreement = options.agreement;
  OwnedSlices::Options owned{.element_count = agreement.buckets.element_count(),
                             .first_step = agreement.first_step,
                             .optimizer = agreement.optimizer,
                             .schedule = agreement.schedule};
  for (const ElementRange slice : OwnedRanges(options)) owned.slices.push_back({slice});
  ASSIGN_OR_RETURN(
      ContributionSum sums,
      ContributionSum::Create(std::move(owned), {.order = agreement.sum_order, .world_size = agreement.world_size},
                              agreement.micro_batches > 0 ? LeafOwnersOf(agreement) : std::vector<int>()));
  std::unique_ptr<ShardJob> job(new ShardJob(std::move(options), std::move(sums)));
  if (start != nullptr) RETURN_IF_ERROR(job->SetStart(*start));
  if (job->options_.sums_in_parts) job->sums_.SumInParts();
  return job;
}

ShardJob::ShardJob(Options options, ContributionSum sums)
    : options_(std::move(options)),
      slices_(OwnedRanges(options_)),
      sums_(std::move(sums)),
      fetches_(slices_.size(), CollectiveWait(world_size())),
      shared_({.sums = &sums_,
               .slices = slices_,
               .element_count = options_.agreement.buckets.element_count(),
               .world_size = world_size(),
               .leaf_owners = LeafOwnersOf(options_.agreement)}),
      workers_(world_size(), Worker{.lanes_open = {}, .alone_since = options_.now + options_.join_deadline}),
      sum_(world_size()),
      finish_wait_(world_size()),
      stall_({.world_size = world_size(),
              .times = options_.stall_times,
              .now = options_.now,
              .ask = [this](int rank) { AskProgress(rank); },
              .tell = [this](int rank, const std::string& text) { TellStall(rank, text); },
              .log = options_.log}) {
  if (options_.metrics != nullptr) options_.metrics->OnJob(world_size());
}

void ShardJob::OnLaneOpen(LaneId lane) {
  CHECK(lane.rank >= 0 && lane.rank < world_size()) << lane.rank;
  workers_[lane.rank].lanes_open.insert(lane.lane);
  workers_[lane.rank].has_connected = true;
  workers_[lane.rank].parts.erase(lane.lane);  // the stream before ended inside a slice
  // This worker had no lane open when the job failed, so it has not been told yet.
  if (state_ == State::kFailed) SendError(lane);
}

void ShardJob::SendError(LaneId lane) {
  ExchangeMessage error;
  error.set_kind(ExchangeMessage::ERROR);
  error.set_code(static_cast<int>(status_.code()));
  error.set_text(std::string(status_.message()));
  Send(lane, std::move(error));
}

void ShardJob::OnLaneClosed(LaneId lane, Time now) {
  Worker& worker = workers_[lane.rank];
  worker.parts.erase(lane.lane);
  if (worker.lanes_open.erase(lane.lane) > 0 && worker.lanes_open.empty()) worker.alone_since = now;
}

void ShardJob::OnMessage(LaneId from, const ReceivedMessage& message, Time now) {
  bytes_received_ += message.payload_bytes;
  // Every worker has been sent the error, or gets it when it opens a lane. Nothing else is answered any more.
  if (state_ == State::kFailed) return;
  if (message.fields.kind() == ExchangeMessage::PROGRESS) {
    // Reports of progress do not count as arrivals: workers that wait send them, too, and would hide a stall.
    stall_.OnProgress(from.rank, GetProgress(message.fields.progress()), now);
    if (message.fields.progress().asks()) Send(from, AnswerTo(message.fields, ExchangeMessage::HERE));
    return;
  }
  stall_.OnArrival(now);
  if (const absl::Status status = TakePart(from, message, now); !status.ok()) {
    Fail(Annotate(status, absl::StrCat("shard ", options_.shard, " got a wrong message from rank ", from.rank)),
         {from.rank});
  }
  if (options_.metrics != nullptr) options_.metrics->OnBytes(bytes_received_, bytes_sent_);
}

int64_t ShardJob::SliceBytes(const ExchangeMessage& fields) const {
  switch (fields.kind()) {
    case ExchangeMessage::INITIAL_PARAMETERS:
    case ExchangeMessage::INITIAL_STATE:
    case ExchangeMessage::GRADIENT:
      // A gradient in shared memory has no payload. A bucket that does not exist is refused in Handle, with a message.
      if (fields.shared() || !CheckBucket(fields).ok()) return -1;
      return slices_[fields.bucket()].size() * static_cast<int64_t>(sizeof(float));
    default:
      return -1;
  }
}

absl::Status ShardJob::TakePart(LaneId from, const ReceivedMessage& message, Time now) {
  // Only a slice that exceeds one message is joined, and only up to its own length: nothing else is held back. Parts
  // of one slice come on one lane, in order, while another lane may bring another slice.
  if (const int64_t slice_bytes = SliceBytes(message.fields); slice_bytes > kMessagePayloadBytesMax) {
    ASSIGN_OR_RETURN(const std::optional<ReceivedMessage> whole,
                     workers_[from.rank].parts[from.lane].Add(message, slice_bytes));
    return whole.has_value() ? Handle(from, *whole, now) : absl::OkStatus();
  }
  if (message.fields.part() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("part ", message.fields.part(), " of ",
                                                   ExchangeMessage::Kind_Name(message.fields.kind()),
                                                   ", which fits into one message"));
  }
  return Handle(from, message, now);
}

absl::Status ShardJob::Handle(LaneId from, const ReceivedMessage& message, Time now) {
  switch (message.fields.kind()) {
    case ExchangeMessage::INITIAL_PARAMETERS:
      return TakeInitialParameters(from, message);
    case ExchangeMessage::INITIAL_STATE:
      return TakeInitialState(from, message);
    case ExchangeMessage::FETCH_PARAMETERS:
      return FetchParameters(from, message, now);
    case ExchangeMessage::GRADIENT:
      return TakeGradient(from, message, now);
    case ExchangeMessage::FETCH_STATE:
      return FetchState(from, message);
    case ExchangeMessage::SUM:
      return TakeSum(from, message, now);
    case ExchangeMessage::SHARE:
      TakeShare(from, message);
      return absl::OkStatus();
    case ExchangeMessage::SIDE_VALUES:
      return TakeSideValues(from, message);
    case ExchangeMessage::FETCH_SIDE_VALUES:
      return FetchSideValues(from, message);
    case ExchangeMessage::FINISH:
      return TakeFinish(from, message, now);
    case ExchangeMessage::ABORT:
      Fail(GivenUp(from.rank, message.fields));
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat("a message of kind ", message.fields.kind(), " is no request"));
  }
}

absl::Status ShardJob::TakeInitialParameters(LaneId from, const ReceivedMessage& message) {
  RETURN_IF_ERROR(CheckBucket(message.fields));
  RETURN_IF_ERROR(CheckIsRank0(from));
  const int b = message.fields.bucket();
  // If the bucket has its parameters, this is a repeat, sent before the answer arrived. It only needs another answer.
  if (sums_.Parameters(b) == nullptr) {
    RETURN_IF_ERROR(sums_.SetParameters(b, message.payload));
    if (!options_.parameters.empty()) {
      const std::span<float> place = options_.parameters.subspan(slices_[b].begin, slices_[b].size());
      CopyArray(sums_.Parameters(b)->parameters(), place);
      sums_.UpdateInPlace(b, place, nullptr);
    }
    shared_.Publish(b);  // rank 0 has no need to fetch, so no request of its own would cause it
    // These workers asked before rank 0 had sent anything.
    for (const LaneId lane : fetches_[b].Take()) SendParameters(lane, b, sums_.Parameters(b));
  }
  Send(from, AnswerTo(message.fields, ExchangeMessage::ACCEPTED));
  return absl::OkStatus();
}

absl::Status ShardJob::TakeInitialState(LaneId from, const ReceivedMessage& message) {
  RETURN_IF_ERROR(CheckBucket(message.fields));
  RETURN_IF_ERROR(CheckVector(message.fields));
  RETURN_IF_ERROR(CheckIsRank0(from));
  const int b = message.fields.bucket();
  // Rank 0 sends a bucket's state before its parameters. If those have arrived, this is a repeat, and must not undo an
  // update that was made since.
  if (sums_.Parameters(b) == nullptr) {
    RETURN_IF_ERROR(sums_.SetState(b, message.fields.vector(), message.payload));
  }
  Send(from, AnswerTo(message.fields, ExchangeMessage::ACCEPTED));
  return absl::OkStatus();
}

absl::Status ShardJob::FetchParameters(LaneId from, const ReceivedMessage& message, Time now) {
  RETURN_IF_ERROR(CheckBucket(message.fields));
  const int b = message.fields.bucket();
  // This comes before any answer is made: the answer follows what the worker says of itself now.
  RETURN_IF_ERROR(shared_.NoteRequest(from.rank, message.fields));
  auto sealed = sums_.Parameters(b);
  if (sealed == nullptr) {
    fetches_[b].Add(from, now);
  } else if (sealed->step() == options_.agreement.first_step - 1) {
    SendParameters(from, b, std::move(sealed));
  }  // else this is a late repeat: the worker has contributed since, so it has the answer
  return absl::OkStatus();
}

absl::Status ShardJob::TakeGradient(LaneId from, const ReceivedMessage& message, Time now) {
  RETURN_IF_ERROR(CheckBucket(message.fields));
  const int b = message.fields.bucket();
  const int64_t step = message.fields.step();
  std::optional<TraceSpan> receive(std::in_place, options_.track, "receive",
                                   TraceLabels{.step = step, .bucket = b, .peer = from.rank});
  // This is a repeat of a step whose answer every worker has, for instance from a connection that was thought lost. It
  // must not reach the lines below: what it says about sharing is out of date, and its shared memory holds a later
  // gradient.
  if (const auto newest = sums_.Parameters(b); newest != nullptr && step < newest->step()) return absl::OkStatus();
  RETURN_IF_ERROR(shared_.NoteRequest(from.rank, message.fields));
  Contribution contribution{.from = from,
                            .step = step,
                            .bucket = b,
                            .node = message.fields.node(),
                            .pieces = message.payload,
                            .keeper = message.keeper};
  if (message.fields.shared()) {
    // Nothing has travelled. The gradient is read in the worker's memory when the last contribution is here; until its
    // answer comes, the worker does not write there.
    ASSIGN_OR_RETURN(const std::span<const float> gradient, shared_.GradientOf(from.rank, message.fields.node()));
    contribution.pieces = {BytesOf(gradient, slices_[b])};
    contribution.keeper = shared_.GradientsOf(from.rank);
    bytes_received_ += static_cast<int64_t>(contribution.pieces[0].size());
  }
  // This comes before the contribution, which may complete the step.
  shared_.UpdateInPlaceIfAllShare(b);
  receive.reset();
  // The clock is read only for a trace or for metrics.
  const int64_t begin_ns = is_watched() ? TraceNow() : 0;
  ASSIGN_OR_RETURN(ContributeResult result, sums_.Contribute(std::move(contribution), now));
  // A repeat has been counted when it came first.
  if (result.fate != ContributionFate::kDuplicate) {
    ++workers_[from.rank].contributions;
    if (is_watched()) NoteContribution(from.rank, message.fields, result, begin_ns);
  }
  if (result.accepted) {
    ExchangeMessage answer = AnswerTo(message.fields, ExchangeMessage::ACCEPTED);
    answer.set_shared(message.fields.shared());  // as an answer with parameters says it
    Send(from, std::move(answer));
  }
  if (result.fate == ContributionFate::kSealed) {
    AnswerAll({.bucket = b, .sealed = std::move(result.sealed), .answer_to = std::move(result.answer_to)});
  } else {
    for (const LaneId lane : result.answer_to) SendParameters(lane, b, result.sealed);
  }
  return absl::OkStatus();
}

void ShardJob::AnswerAll(const SealedUpdate& update) {
  const int64_t next_step = update.sealed->step() + 1;
  // A snapshot is taken before any answer leaves: then nobody can have gone on to the next step.
  if (options_.snapshots != nullptr && IsSnapshotStep(next_step, options_.snapshot_every, options_.steps_per_epoch)) {
    TakeSnapshot(next_step, update.bucket);
  }
  // The answers say that shared memory holds this step, so it must before the first of them is sent.
  shared_.PublishIfShared(update.bucket);
  // Shards begin at different workers, as workers begin at different shards (StarExchange::ForEachSlice).
  const size_t first = update.answer_to.size() * options_.shard / options_.shard_count;
  for (size_t i = 0; i < update.answer_to.size(); ++i) {
    SendParameters(update.answer_to[(first + i) % update.answer_to.size()], update.bucket, update.sealed);
  }
}

std::optional<int> ShardJob::SumPart() {
  CHECK(is_summing());
  const int64_t begin_ns = is_watched() ? TraceNow() : 0;
  const std::optional<SealedUpdate> update = sums_.SumPart();
  if (is_watched()) sum_ns_ += DrawSum(summing_.front().labels, begin_ns);
  if (!update.has_value()) return std::nullopt;
  if (is_watched()) {
    NoteSum(summing_.front(), std::exchange(sum_ns_, 0));
    summing_.pop_front();
  }
  AnswerAll(*update);
  return update->bucket;
}

void ShardJob::NoteContribution(int rank, const ExchangeMessage& fields, const ContributeResult& result,
                                int64_t arrival_ns) {
  // In shared memory all contributions are noted when the last one is there.
  const bool knows_arrivals = options_.parameters.empty();
  const LastContribution last = {
      .rank = knows_arrivals ? rank : -1,
      .labels = {.step = fields.step(), .bucket = fields.bucket()},
      .first_arrival_ns =
          knows_arrivals
              ? std::chrono::duration_cast<std::chrono::nanoseconds>(result.first_arrival.time_since_epoch()).count()
              : arrival_ns,
      .arrival_ns = arrival_ns};
  if (options_.metrics != nullptr && knows_arrivals) {
    options_.metrics->OnContribution(
        rank, 1e-9 * static_cast<double>(std::max<int64_t>(0, arrival_ns - last.first_arrival_ns)));
  }
  if (result.fate == ContributionFate::kSealed) NoteSum(last, DrawSum(last.labels, arrival_ns));
  if (result.fate == ContributionFate::kComplete) summing_.push_back(last);
}

int64_t ShardJob::DrawSum(const TraceLabels& labels, int64_t begin_ns) {
  const int64_t end_ns = TraceNow();
  if (options_.track != nullptr) {
    options_.track->Add({.name = "sum + apply", .begin_ns = begin_ns, .end_ns = end_ns, .labels = labels});
  }
  return end_ns - begin_ns;
}

void ShardJob::NoteSum(const LastContribution& last, int64_t sum_ns) {
  // The span is drawn when it is over: before that, no one knows which contribution is the last.
  if (options_.track != nullptr && last.rank >= 0) {
    options_.track->Add({.name = "wait for the last worker",
                         .kind = TraceEvent::Kind::kFlight,
                         .begin_ns = last.first_arrival_ns,
                         .end_ns = last.arrival_ns,
                         .labels = last.labels});
  }
  if (options_.metrics == nullptr) return;
  options_.metrics->OnSum(
      {.last_rank = last.rank,
       .queue_seconds = 1e-9 * static_cast<double>(std::max<int64_t>(0, last.arrival_ns - last.first_arrival_ns)),
       .sum_seconds = 1e-9 * static_cast<double>(sum_ns),
       .steps_complete = sums_.steps_complete()});
}

absl::Status ShardJob::FetchState(LaneId from, const ReceivedMessage& message) {
  RETURN_IF_ERROR(CheckBucket(message.fields));
  RETURN_IF_ERROR(CheckVector(message.fields));
  if (from.lane != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("FETCH_STATE on lane ", from.lane, ": it is asked on lane 0, where one copy is made at a time"));
  }
  const int b = message.fields.bucket();
  const int vector = message.fields.vector();
  const int64_t count = slices_[b].size();
  bytes_sent_ += count * static_cast<int64_t>(sizeof(float));
  // The copy may be made later: the state does not change until this worker contributes again, which it does after the
  // answer has arrived.
  const auto copy_part = [](std::span<const float> all, int64_t begin, std::span<float> out) {
    std::ranges::copy(all.subspan(static_cast<size_t>(begin), out.size()), out.begin());
  };
  // `make` may run after this message is gone, so it has copies of the numbers.
  std::function<void(int64_t, std::span<float>)> make = [=, this](int64_t begin, std::span<float> out) {
    copy_part(sums_.owned().state(b, vector), begin, out);
  };
  if (message.fields.step() > 0) {
    RETURN_IF_ERROR(PinSnapshot(message.fields.step()));
    // In a snapshot's arrays the slices follow each other, bucket after bucket.
    int64_t offset = 0;
    for (int before = 0; before < b; ++before) offset += slices_[before].size();
    make = [=, snapshot = read_snapshot_](int64_t begin, std::span<float> out) {
      copy_part(snapshot->arrays[static_cast<size_t>(vector) + 1].span(), offset + begin, out);
    };
  }
  options_.send({.to = from,
                 .fields = AnswerTo(message.fields, ExchangeMessage::STATE),
                 .make = std::move(make),
                 .made_count = count});
  return absl::OkStatus();
}

// The worker reads a snapshot piece by piece, while newer ones are taken and old ones dropped.
absl::Status ShardJob::PinSnapshot(int64_t step) {
  if (read_snapshot_ != nullptr && read_snapshot_->step == step) return absl::OkStatus();
  if (options_.snapshots == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("FETCH_STATE of step ", step, ": only an elastic run has them"));
  }
  read_snapshot_.reset();  // first: two of them would be more than a job's memory was computed for
  ASSIGN_OR_RETURN(read_snapshot_, options_.snapshots->Get(step));
  return absl::OkStatus();
}

absl::Status ShardJob::SetStart(const Snapshot& start) {
  if (start.step != options_.agreement.first_step) {
    return absl::InvalidArgumentError(absl::StrCat("the snapshot is of step ", start.step,
                                                   ", the generation begins at ", options_.agreement.first_step));
  }
  int64_t offset = 0;
  for (int b = 0; b < static_cast<int>(slices_.size()); ++b) {
    const ElementRange slice = {offset, offset + slices_[b].size()};
    for (size_t i = 1; i < start.arrays.size(); ++i) {
      const std::vector<BytePiece> state = {BytesOf(start.arrays[i].span(), slice)};
      RETURN_IF_ERROR(sums_.SetState(b, static_cast<int>(i) - 1, state));
    }
    const std::vector<BytePiece> parameters = {BytesOf(start.arrays[0].span(), slice)};
    RETURN_IF_ERROR(sums_.SetParameters(b, parameters));
    offset = slice.end;
  }
  start_side_values_ = start.side_values;
  return absl::OkStatus();
}

void ShardJob::TakeSnapshot(int64_t step, int bucket) {
  const TraceSpan span(options_.track, "snapshot", {.step = step, .bucket = bucket});
  std::vector<std::span<const float>> slices = {sums_.Parameters(bucket)->parameters()};
  for (int i = 0; i < StateVectorCount(options_.agreement.optimizer); ++i) {
    slices.push_back(sums_.owned().state(bucket, i));
  }
  options_.snapshots->Take(step, bucket, slices);
  const int64_t leaves = sums_.counted_leaves(bucket);
  const auto [counted, is_first] = counted_.try_emplace(step, leaves);
  // Every bucket comes here once for a snapshot. If one has counted other leaves than another, the step proves nothing.
  if (counted->second != leaves) counted->second = 0;
  if (std::ssize(counted_) > kSnapshotsReportedMax) counted_.erase(counted_.begin());
}

absl::Status ShardJob::TakeSideValues(LaneId from, const ReceivedMessage& message) {
  RETURN_IF_ERROR(CheckIsRank0(from));
  if (options_.snapshots == nullptr || options_.shard != 0) {
    return absl::FailedPreconditionError("SIDE_VALUES go to shard 0 of an elastic run");
  }
  const int64_t bytes = message.payload_bytes;
  const int64_t step = message.fields.step();
  // The worker was in the step before this snapshot, and began that when all before it were over. A shard that owns no
  // element counts no steps.
  const bool counts = std::ranges::any_of(slices_, [](const ElementRange& slice) { return slice.size() > 0; });
  const int64_t step_max = counts ? sums_.steps_complete() + 1 : kStepCountMax;
  if (bytes % static_cast<int64_t>(sizeof(double)) != 0 || step <= options_.agreement.first_step || step > step_max ||
      !IsSnapshotStep(step, options_.snapshot_every, options_.steps_per_epoch)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SIDE_VALUES of step ", step, " with ", bytes, " bytes: steps after ", options_.agreement.first_step,
        " and up to ", step_max, " have them, every ", options_.snapshot_every, " or ", options_.steps_per_epoch));
  }
  std::vector<double> values(static_cast<size_t>(bytes) / sizeof(double));
  std::byte* to = reinterpret_cast<std::byte*>(values.data());
  for (const BytePiece& piece : message.payload) to = std::ranges::copy(piece, to).out;
  options_.snapshots->SetSideValues(step, std::move(values));
  Send(from, AnswerTo(message.fields, ExchangeMessage::ACCEPTED));
  return absl::OkStatus();
}

absl::Status ShardJob::FetchSideValues(LaneId from, const ReceivedMessage& message) {
  const std::span<const double> all = start_side_values_;
  // The request's `step` is the number of the first value that the worker wants.
  const auto begin = static_cast<size_t>(std::clamp<int64_t>(message.fields.step(), 0, std::ssize(all)));
  // A block begins with the number of all values, by which the worker knows whether to ask for more.
  const auto block = std::make_shared<std::vector<double>>(kSideValuesBlock);  // shared: a keeper is
  const auto values = all.subspan(begin, std::min<size_t>(all.size() - begin, kSideValuesBlock - 1));
  block->front() = static_cast<double>(all.size());
  std::ranges::copy(values, block->begin() + 1);
  Send(from, AnswerTo(message.fields, ExchangeMessage::SIDE_VALUES_RESULT), std::as_bytes(std::span(*block)), block);
  return absl::OkStatus();
}

void ShardJob::TakeShare(LaneId from, const ReceivedMessage& message) {
  ExchangeMessage answer = AnswerTo(message.fields, ExchangeMessage::SHARED);
  // A failure is no error of the job: a worker on another machine asks in vain, and goes on by socket.
  const auto parameters = shared_.Share(from.rank, message.fields);
  if (parameters.ok()) *answer.mutable_parameter_memory() = *parameters;  // else the worker goes on by socket
  Send(from, std::move(answer));
}

absl::Status ShardJob::TakeSum(LaneId from, const ReceivedMessage& message, Time now) {
  ASSIGN_OR_RETURN(const std::vector<LaneId> lanes, sum_.Take(from, message, now));
  for (const LaneId lane : lanes) {
    Send(lane, AnswerTo(message.fields, ExchangeMessage::SUM_RESULT), std::as_bytes(std::span(*sum_.last())),
         sum_.last());
  }
  return absl::OkStatus();
}

absl::Status ShardJob::TakeFinish(LaneId from, const ReceivedMessage& message, Time now) {
  finish_wait_.Add(from, now);
  // The worker has lost the answer with its connection.
  if (state_ == State::kFinished) {
    Send(from, AnswerTo(message.fields, ExchangeMessage::FINISHED));
    return absl::OkStatus();
  }
  if (!finish_wait_.complete()) return absl::OkStatus();
  state_ = State::kFinished;
  // The entries stay, so that a repeat after the end is answered and GetStatus shows who has finished.
  for (const LaneId lane : finish_wait_.Waiting()) Send(lane, AnswerTo(message.fields, ExchangeMessage::FINISHED));
  return absl::OkStatus();
}

absl::Status ShardJob::CheckBucket(const ExchangeMessage& fields) const {
  if (fields.bucket() >= 0 && fields.bucket() < std::ssize(slices_)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bucket ", fields.bucket(), " is not below the bucket count ", slices_.size()));
}

absl::Status ShardJob::CheckIsRank0(LaneId from) {
  // If any rank could send them, the run would start from whichever came first, and rank 0 from its own.
  if (from.rank == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", from.rank, " sends what all start from: rank 0 alone may do that"));
}

absl::Status ShardJob::CheckVector(const ExchangeMessage& fields) const {
  const int count = StateVectorCount(options_.agreement.optimizer);
  if (fields.vector() >= 0 && fields.vector() < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("state vector ", fields.vector(), " is not below ", count, ", the number that the optimizer has"));
}

void ShardJob::SendParameters(LaneId to, int bucket, std::shared_ptr<const SealedSlice> sealed) {
  ExchangeMessage fields;
  fields.set_kind(ExchangeMessage::PARAMETERS);
  fields.set_step(sealed->step());
  fields.set_bucket(bucket);
  const auto bytes = std::as_bytes(sealed->parameters());
  if (shared_.Shares(to.rank)) {
    shared_.Publish(bucket);  // this worker may be the first one to read there
    // The worker reads whatever is in that memory. Another step there would be silently wrong parameters.
    CHECK_EQ(shared_.published_step(bucket), sealed->step());
    fields.set_shared(true);
    bytes_sent_ += static_cast<int64_t>(bytes.size());
    Send(to, std::move(fields));
    return;
  }
  // All answers refer to one slice, which lives until gRPC has sent the last of them.
  Send(to, std::move(fields), bytes, std::move(sealed));
}

void ShardJob::Send(LaneId to, ExchangeMessage fields, std::span<const std::byte> payload,
                    std::shared_ptr<const void> keeper) {
  bytes_sent_ += static_cast<int64_t>(payload.size());
  options_.send({.to = to, .fields = std::move(fields), .payload = payload, .keeper = std::move(keeper)});
}

void ShardJob::Fail(const absl::Status& why, std::vector<int> blamed) {
  CHECK(!why.ok());
  // The first error is the cause; later ones are mostly its consequences, such as workers that go away.
  if (state_ != State::kRunning) return;
  state_ = State::kFailed;
  status_ = why;
  blamed_ = std::move(blamed);
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::set<int> lanes = workers_[rank].lanes_open;  // a copy, because sending may close a lane
    for (const int lane : lanes) SendError({rank, lane});
  }
}

}  // namespace starring
