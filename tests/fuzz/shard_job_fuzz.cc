// Messages of several workers to one shard, in any order, on lanes that open and close, while time passes.
//
// The input is two bytes that choose the job, then events. An event is a byte (its kind, rank and lane) and its
// arguments. A message is raw bytes, or is made from a few bytes so that it usually passes the first checks. All go
// through DecodeMessage, in two pieces. The job is plain, or has micro-batches, also with snapshots as in an elastic
// run.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "common/job/leaf_shares.h"
#include "common/wire/exchange_message.h"
#include "common/wire/shared_memory.h"
#include "proto/starring/v1/job.pb.h"
#include "server/elastic/snapshot_store.h"
#include "server/shard/shard_job.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using v1::ExchangeMessage;

// The number of answers that a lane may have before the server writes them.
constexpr size_t kAnswersKept = 16;
constexpr int64_t kBlockElements = ReductionBlockElements(1);

// Snapshots come every other and every third step.
constexpr int64_t kSnapshotEvery = 2;
constexpr int64_t kStepsPerEpoch = 3;

enum class JobKind { kPlain, kMicroBatches, kSnapshots, kFromSnapshot };

struct JobShape {
  JobKind kind = JobKind::kPlain;
  int world_size = 1;
  int64_t element_count = 1;
  int shard = 0;
  int shard_count = 1;
  int64_t first_step = 0;
};

JobShape ShapeOf(int first, int second) {
  JobShape shape{
      .kind = static_cast<JobKind>((second >> 2) & 3), .world_size = 1 + (first & 3), .shard_count = 1 + (first >> 6)};
  constexpr std::array<int64_t, 3> kElementCounts = {1, 40, 100};
  // Two buckets are rare, because they take a hundred times as long.
  const int size = std::min((first >> 2) & 3, (second >> 6) == 3 ? 3 : 2);
  if (size == 3) shape.world_size = 1 + (first & 1);  // two buckets, of which the first is short
  shape.element_count = size < 3 ? kElementCounts[size] : kBlockElements + 24;
  shape.shard = (second & 3) % shape.shard_count;
  constexpr std::array<int64_t, 4> kFirstSteps = {0, 1, 1000, int64_t{1} << 40};
  shape.first_step = kFirstSteps[(second >> 4) & 3];
  return shape;
}

// By leaf its rank. With two ranks or more, rank 0 has two nodes or more.
std::vector<int> LeafOwnersFor(int world_size) {
  std::vector<int> owners;
  for (int leaf = 0; leaf < 5; ++leaf) owners.push_back(leaf * world_size / 5);
  owners.push_back(0);
  return owners;
}

Agreement AgreementOf(const JobShape& shape, int first) {
  v1::JobAgreement proto;
  proto.set_world_size(shape.world_size);
  proto.set_layout_hash("hash");
  proto.set_element_count(shape.element_count);
  const auto buckets = BucketMap::Create({.element_count = shape.element_count, .bucket_bytes = 1});
  CHECK_OK(buckets);
  proto.set_bucket_bytes(buckets->bucket_bytes());
  proto.set_chunk_bytes(ChunkBytesFor(shape.kind == JobKind::kPlain ? shape.world_size : 1));
  if (shape.kind != JobKind::kPlain) {
    const std::vector<int> owners = LeafOwnersFor(shape.world_size);
    proto.set_sum_order(v1::JobAgreement::TREE);
    proto.set_micro_batches(static_cast<int>(owners.size()));
    proto.set_leaf_owners(absl::StrJoin(owners, ","));
  }
  proto.set_first_step(shape.first_step);
  const bool adamw = (first & 16) != 0;
  proto.mutable_optimizer()->set_kind(adamw ? v1::OptimizerConfig::ADAMW : v1::OptimizerConfig::SGD);
  proto.mutable_optimizer()->set_momentum((first & 32) != 0 && !adamw ? 0.9 : 0);
  proto.mutable_optimizer()->set_beta1(0.9);
  proto.mutable_optimizer()->set_beta2(0.999);
  proto.mutable_optimizer()->set_epsilon(1e-8);
  proto.mutable_schedule()->set_base(0.1);
  auto agreement = ParseAgreement(proto.SerializeAsString());
  CHECK_OK(agreement);
  return *std::move(agreement);
}

// The shared memory of a worker on this machine, for gradients and for parameters. It is made once, because that takes
// longer than the rest of an input.
const v1::SharedMemory& MemoryOf(int64_t element_count, int which) {
  static auto& memories = *new std::map<std::pair<int64_t, int>, std::unique_ptr<SharedMemory>>;
  std::unique_ptr<SharedMemory>& memory = memories[{element_count, which}];
  if (memory == nullptr) {
    auto created = SharedMemory::Create(element_count);
    CHECK_OK(created);
    memory = *std::move(created);
  }
  return memory->where();
}

class Driver {
 public:
  explicit Driver(FuzzInput* input) : input_(*input) {
    const int first = input_.Byte(), second = input_.Byte();
    shape_ = ShapeOf(first, second);
    const Agreement agreement = AgreementOf(shape_, first);
    for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
      slice_bytes_.push_back(
          starring::OwnerMap::ShardRanges(shape_.shard_count).RangeOf(agreement.buckets.sum(b), shape_.shard).size() *
          4);
    }
    newest_.assign(slice_bytes_.size(), shape_.first_step - 1);
    for (int rank = 0; rank < shape_.world_size; ++rank) {
      node_counts_.push_back(static_cast<int>(ShareOf(rank, LeafOwnersOf(agreement)).size()));
    }
    const bool is_elastic = shape_.kind == JobKind::kSnapshots || shape_.kind == JobKind::kFromSnapshot;
    if (is_elastic) OpenSnapshots(agreement);
    auto job = ShardJob::Create({.agreement = agreement,
                                 .shard = shape_.shard,
                                 .shard_count = shape_.shard_count,
                                 .exchange_deadline = milliseconds(10'000),
                                 .join_deadline = milliseconds(5'000),
                                 .send = [this](Answer answer) { Take(std::move(answer)); },
                                 .now = now_,
                                 .stall_times = {.report_after = milliseconds(is_elastic ? 4'000 : 0)},
                                 .snapshots = snapshots_.get(),
                                 .snapshot_every = kSnapshotEvery,
                                 .steps_per_epoch = kStepsPerEpoch,
                                 .start = shape_.kind == JobKind::kFromSnapshot ? FirstSnapshot() : nullptr});
    CHECK_OK(job);
    job_ = *std::move(job);
  }

  void Run() {
    while (!input_.empty()) {
      const ShardJob::State before = job_->state();
      Event();
      CHECK(before != ShardJob::State::kFailed || job_->state() == ShardJob::State::kFailed);
      CHECK(before != ShardJob::State::kFinished || job_->state() == ShardJob::State::kFinished);
      CHECK_EQ(job_->state() == ShardJob::State::kFailed, !job_->status().ok());
      if (snapshots_ != nullptr) CheckSnapshots();
    }
  }

 private:
  void OpenSnapshots(const Agreement& agreement) {
    SnapshotStore::Options options{.shard = shape_.shard,
                                   .shard_count = shape_.shard_count,
                                   .vector_count = StateVectorCount(agreement.optimizer),
                                   .has_side_values = shape_.shard == 0};
    for (const int64_t bytes : slice_bytes_) {
      options.slice_elements.push_back(bytes / 4);
      snapshot_elements_ += bytes / 4;
    }
    snapshot_arrays_ = 1 + options.vector_count;
    auto opened = SnapshotStore::Open(std::move(options));
    CHECK_OK(opened);
    snapshots_ = *std::move(opened);
  }

  std::shared_ptr<const Snapshot> FirstSnapshot() const {
    auto snapshot = std::make_shared<Snapshot>();
    snapshot->step = shape_.first_step;
    for (int i = 0; i < snapshot_arrays_; ++i) snapshot->arrays.emplace_back(snapshot_elements_);
    snapshot->side_values.assign(kSideValuesBlock + 100, 0.5);  // two blocks
    return snapshot;
  }

  void CheckSnapshots() {
    CHECK_LE(snapshots_->bytes_in_memory(), SnapshotStore::kAliveMax * snapshot_arrays_ * snapshot_elements_ * 4);
    const std::vector<int64_t> held = snapshots_->held();
    CHECK_LE(held.size(), SnapshotStore::kInMemoryMax);
    if (held.empty() || held.back() <= newest_snapshot_) return;
    newest_snapshot_ = held.back();
    const auto snapshot = snapshots_->Get(newest_snapshot_);
    CHECK_OK(snapshot);
    CHECK_EQ((*snapshot)->step, newest_snapshot_);
    Reached(absl::StrCat("snapshot of step ", newest_snapshot_));
  }

  void Event() {
    const int byte = input_.Byte();
    const LaneId lane{.rank = ((byte >> 3) & 3) % shape_.world_size, .lane = byte >> 5};
    switch (byte & 7) {
      case 0:
        Deliver(lane, input_.Block());
        break;
      case 1:
        lanes_open_.insert(lane);
        job_->OnLaneOpen(lane);
        break;
      case 2:
        if (lanes_open_.erase(lane) > 0) job_->OnLaneClosed(lane, now_);
        break;
      case 3:
        now_ += milliseconds(100 * input_.Byte());
        job_->CheckDeadlines(now_);
        break;
      case 4: {
        v1::GetStatusReply reply;
        job_->Describe(&reply);
        CHECK_EQ(reply.workers_size(), shape_.world_size);
        for (const auto& worker : reply.workers()) {
          CHECK(worker.buckets_missing() >= 0 && worker.buckets_missing() <= std::ssize(slice_bytes_))
              << worker.buckets_missing();
        }
        while (!kept_.empty()) Write();
        break;
      }
      default:
        DeliverMadeUp(lane);
        break;
    }
  }

  // Five bytes choose the fields. The payload has the right length, unless the last byte says otherwise.
  void DeliverMadeUp(LaneId lane) {
    constexpr std::array kKinds = {ExchangeMessage::GRADIENT,    ExchangeMessage::INITIAL_PARAMETERS,
                                   ExchangeMessage::SUM,         ExchangeMessage::FETCH_PARAMETERS,
                                   ExchangeMessage::FETCH_STATE, ExchangeMessage::INITIAL_STATE,
                                   ExchangeMessage::SHARE,       ExchangeMessage::FINISH};
    // With the highest bit of `kind`; this FETCH_STATE is of a snapshot.
    constexpr std::array kElasticKinds = {ExchangeMessage::SIDE_VALUES, ExchangeMessage::FETCH_SIDE_VALUES,
                                          ExchangeMessage::PROGRESS, ExchangeMessage::FETCH_STATE};
    const int kind = input_.Byte();
    const auto step_ahead = static_cast<int8_t>(input_.Byte());
    int bucket = input_.Byte() % (static_cast<int>(slice_bytes_.size()) + 1);
    const int fill = input_.Byte();
    if (bucket == 1 && slice_bytes_.size() == 2 && fill % 16 != 0) bucket = 0;  // two buckets are rare
    const auto longer = static_cast<int8_t>(input_.Byte());
    const bool is_elastic = (kind & 128) != 0;
    const int64_t steps_over = newest_[0] + 1;
    // All shards have the snapshot durably, so older ones go.
    if (is_elastic && (kind & 4) != 0 && snapshots_ != nullptr) return snapshots_->DropBefore(steps_over + step_ahead);
    ExchangeMessage fields;
    fields.set_kind(is_elastic ? kElasticKinds[kind % kElasticKinds.size()] : kKinds[kind % kKinds.size()]);
    fields.set_bucket(bucket);
    const int vector_or_purpose = (kind >> 3) & 3;
    fields.set_vector(vector_or_purpose);
    fields.set_shared((kind & 32) != 0);
    const bool exists = bucket < static_cast<int>(slice_bytes_.size());
    int64_t bytes = 0;
    int64_t step = 0;
    switch (fields.kind()) {
      case ExchangeMessage::SUM:
        bytes = 8 * (fill % 4);
        fields.set_sum_purpose(vector_or_purpose);
        step = next_sum_;
        break;
      case ExchangeMessage::GRADIENT:
        step = exists ? newest_[bucket] + 1 : 0;
        fields.set_node(vector_or_purpose % node_counts_[lane.rank]);
        if (!fields.shared() && exists) bytes = slice_bytes_[bucket];
        break;
      case ExchangeMessage::INITIAL_PARAMETERS:
      case ExchangeMessage::INITIAL_STATE:
        if (exists) bytes = slice_bytes_[bucket];
        break;
      case ExchangeMessage::FETCH_STATE:
        if (is_elastic) step = steps_over;
        break;
      case ExchangeMessage::SIDE_VALUES:
        bytes = 8 * (fill % 4);
        step = steps_over + 1;
        break;
      case ExchangeMessage::SHARE:
        *fields.mutable_gradient_memory() = MemoryOf(shape_.element_count * node_counts_[lane.rank], (kind >> 3) & 1);
        if ((kind & 64) != 0) *fields.mutable_parameter_memory() = MemoryOf(shape_.element_count, 1);
        break;
      case ExchangeMessage::PROGRESS:
        SetProgress({.phase = static_cast<WorkPhase>(fill), .step = step_ahead, .silent_shard = vector_or_purpose - 1},
                    fields.mutable_progress());
        fields.mutable_progress()->set_asks(fields.shared());
        break;
      default:
        break;
    }
    fields.set_step(step + step_ahead);
    bytes = std::max<int64_t>(0, bytes + longer);
    Deliver(lane, EncodeBeforePayload(fields, bytes) + std::string(bytes, static_cast<char>(fill)));
  }

  // Handles a message like a lane that has read it.
  void Deliver(LaneId lane, const std::string& bytes) {
    if (!lanes_open_.contains(lane)) return;
    const auto kept = std::make_shared<const std::string>(bytes);
    const BytePiece whole = std::as_bytes(std::span(*kept));
    const std::array<BytePiece, 2> pieces = {whole.first(whole.size() / 2), whole.subspan(whole.size() / 2)};
    auto message = DecodeMessage(pieces);
    if (!message.ok() || message->fields.kind() == ExchangeMessage::HELLO) return;
    message->keeper = kept;
    job_->OnMessage(lane, *message, now_);
  }

  void Take(Answer answer) {
    CHECK(0 <= answer.to.rank && answer.to.rank < shape_.world_size) << answer.to.rank;
    CHECK_GE(answer.fields.kind(), ExchangeMessage::ACCEPTED);
    // A worker must be able to decode the answer.
    const std::string head = EncodeBeforePayload(answer.fields, std::ssize(answer.payload));
    const std::array<BytePiece, 2> pieces = {std::as_bytes(std::span(head)), answer.payload};
    CHECK_OK(DecodeMessage(pieces));
    Reached(absl::StrCat(ExchangeMessage::Kind_Name(answer.fields.kind()), " ", answer.fields.step(), " of bucket ",
                         answer.fields.bucket(), answer.fields.shared() ? " shared" : "", " ", answer.fields.text()));
    if (answer.fields.kind() == ExchangeMessage::PARAMETERS) {
      int64_t& newest = newest_[answer.fields.bucket()];
      CHECK_GE(answer.fields.step(), newest);
      newest = answer.fields.step();
    }
    if (answer.fields.kind() == ExchangeMessage::SUM_RESULT) {
      next_sum_ = std::max(next_sum_, answer.fields.step() + 1);
    }
    kept_.push_back(std::move(answer));
    if (kept_.size() > kAnswersKept) Write();
  }

  // Writes an answer like a lane when it is the answer's turn.
  void Write() {
    const Answer answer = std::move(kept_.front());
    kept_.pop_front();
    for (const std::byte byte : answer.payload) bytes_seen_ += byte == std::byte{0} ? 0 : 1;
    if (answer.make == nullptr) return;
    std::vector<float> part(std::min<int64_t>(answer.made_count, 64));
    answer.make(answer.made_count - std::ssize(part), part);
  }

  FuzzInput& input_;
  JobShape shape_;
  std::vector<int64_t> slice_bytes_;  // by bucket
  std::vector<int64_t> newest_;       // by bucket: the step of the newest parameters that were sent
  int64_t next_sum_ = 0;
  int64_t bytes_seen_ = 0;
  ShardJob::Time now_{std::chrono::seconds(1000)};
  std::vector<int> node_counts_;  // by rank, of its share
  int64_t snapshot_elements_ = 0;
  int snapshot_arrays_ = 0;
  int64_t newest_snapshot_ = -1;
  std::set<LaneId> lanes_open_;
  std::deque<Answer> kept_;                   // answers that a transport has not written yet
  std::unique_ptr<SnapshotStore> snapshots_;  // null in a job without
  std::unique_ptr<ShardJob> job_;
};

}  // namespace
}  // namespace starring

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  starring::Driver(&input).Run();
  return 0;
}
