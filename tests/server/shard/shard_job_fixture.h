// A ShardJob without gRPC: tests send messages to it and look at its answers.
#ifndef STARRING_TESTS_SERVER_SHARD_SHARD_JOB_FIXTURE_H_
#define STARRING_TESTS_SERVER_SHARD_SHARD_JOB_FIXTURE_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/exchange_message.h"
#include "server/shard/shard_job.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {

// A job of `world_size` workers with one shard, which owns everything, or with shard `place.index` of several. Keeps
// all answers until TakeAnswers.
class Shard {
 public:
  struct Place {
    int index = 0;
    int count = 1;
  };
  explicit Shard(int world_size, int64_t elements = 300'000, int64_t bucket_bytes = 1, Place where = {0, 1})
      : place(where) {
    spec = MakeJob(0, world_size, elements, bucket_bytes);
    job = CreateJob();
    for (int rank = 0; rank < world_size; ++rank) job->OnLaneOpen({rank, 0});
  }

  // A job without a lane.
  std::unique_ptr<ShardJob> CreateJob() {
    auto agreement = ParseAgreement(SerializeAgreement(spec));
    CHECK_OK(agreement);
    auto created = ShardJob::Create({.agreement = *std::move(agreement),
                                     .shard = place.index,
                                     .shard_count = place.count,
                                     .exchange_deadline = std::chrono::seconds(10),
                                     .join_deadline = std::chrono::seconds(5),
                                     .send = [this](Answer answer) { on_answer(std::move(answer)); },
                                     .now = now,
                                     .stall_times = {.report_after = std::chrono::seconds(4)},
                                     .log = [this](const std::string& line) { log.push_back(line); },
                                     .snapshots = snapshots,
                                     .snapshot_every = snapshot_every,
                                     .steps_per_epoch = snapshot_every,
                                     .start = start});
    CHECK_OK(created);
    return *std::move(created);
  }

  // Makes the payload at once, as the lane would part by part.
  static void Make(Answer* answer) {
    auto values = std::make_shared<std::vector<float>>(answer->made_count);
    answer->make(0, *values);
    answer->payload = std::as_bytes(std::span<const float>(*values));
    answer->keeper = values;
  }

  void Send(LaneId from, v1::ExchangeMessage fields, std::span<const std::byte> payload = {}) {
    auto kept = std::make_shared<std::vector<std::byte>>(payload.begin(), payload.end());
    ReceivedMessage message{.fields = std::move(fields),
                            .payload = {},
                            .payload_bytes = static_cast<int64_t>(kept->size()),
                            .keeper = kept};
    if (!kept->empty()) message.payload.push_back(*kept);
    job->OnMessage(from, message, now);
  }

  void SendInitialParameters() {
    const std::vector<float> parameters = InitialParameters(spec.layout.element_count());
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      Send({0, 0}, Fields(v1::ExchangeMessage::INITIAL_PARAMETERS, -1, b), Slice(parameters, b));
    }
  }

  void SendGradient(LaneId from, int64_t step, int bucket, GradientFunction gradient = RoughGradientAt) {
    std::vector<float> values(spec.layout.element_count());
    for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(from.rank, step, static_cast<int64_t>(i));
    Send(from, Fields(v1::ExchangeMessage::GRADIENT, step, bucket), Slice(values, bucket));
  }

  // Writes the gradient to `memory`, as a worker that shares it does, and sends a message that says so.
  void SendSharedGradient(LaneId from, int64_t step, int bucket, SharedMemory* memory) {
    const ElementRange range = spec.buckets.bucket(bucket);
    for (int64_t i = range.begin; i < range.end; ++i) {
      memory->writable_values()[i] = RoughGradientAt(from.rank, step, i);
    }
    SendShared(from, v1::ExchangeMessage::GRADIENT, step, bucket);
  }
  void SendShared(LaneId from, v1::ExchangeMessage::Kind kind, int64_t step, int bucket) {
    v1::ExchangeMessage fields = Fields(kind, step, bucket);
    fields.set_shared(true);
    Send(from, std::move(fields));
  }

  // Sends a SHARE and returns the answer.
  v1::ExchangeMessage Share(LaneId from, const v1::SharedMemory& gradients,
                            const v1::SharedMemory* parameters = nullptr) {
    v1::ExchangeMessage fields = Fields(v1::ExchangeMessage::SHARE, 0, 0);
    *fields.mutable_gradient_memory() = gradients;
    if (parameters != nullptr) *fields.mutable_parameter_memory() = *parameters;
    TakeAnswers();
    Send(from, std::move(fields));
    return TakeAnswers().at(0).fields;
  }

  std::unique_ptr<SharedMemory> MakeMemory() const {
    auto memory = SharedMemory::Create(spec.layout.element_count());
    CHECK_OK(memory);
    return *std::move(memory);
  }
  std::unique_ptr<SharedMemory> OpenMemory(const v1::ExchangeMessage& answer) const {
    auto memory =
        SharedMemory::Open(answer.parameter_memory(), spec.layout.element_count(), SharedMemory::Access::kRead);
    CHECK_OK(memory);
    return *std::move(memory);
  }

  void SendSum(LaneId from, int64_t number, const std::vector<double>& values) {
    Send(from, Fields(v1::ExchangeMessage::SUM, number, 0), std::as_bytes(std::span(values)));
  }

  static v1::ExchangeMessage Fields(v1::ExchangeMessage::Kind kind, int64_t step, int bucket, int vector = 0) {
    v1::ExchangeMessage fields;
    fields.set_kind(kind);
    fields.set_step(step);
    fields.set_bucket(bucket);
    fields.set_vector(vector);
    return fields;
  }

  std::span<const std::byte> Slice(const std::vector<float>& whole, int bucket) const {
    const ElementRange range = OwnerMap::ShardRanges(place.count).RangeOf(spec.buckets.sum(bucket), place.index);
    return std::as_bytes(std::span(whole).subspan(range.begin, range.size()));
  }

  void SendProgress(int rank, WorkPhase phase, int64_t step, bool asks = false) {
    v1::ExchangeMessage fields = Fields(v1::ExchangeMessage::PROGRESS, 0, 0);
    SetProgress({.phase = phase, .step = step}, fields.mutable_progress());
    fields.mutable_progress()->set_asks(asks);
    Send({rank, 0}, std::move(fields));
  }

  // Lets time pass as a server does, which looks at deadlines every 100 ms.
  void Tick(std::chrono::milliseconds duration) {
    for (const auto end = now + duration; now < end;) {
      now += std::chrono::milliseconds(100);
      job->CheckDeadlines(now);
    }
  }

  std::vector<Answer> TakeAnswers() { return std::exchange(answers, {}); }

  const Place place;
  JobSpec spec;
  ShardJob::Time now{std::chrono::seconds(1000)};
  std::vector<Answer> answers;
  SnapshotStore* snapshots = nullptr;  // this and the next two: of jobs that are created from now on
  int64_t snapshot_every = 1;
  std::shared_ptr<const Snapshot> start;
  std::function<void(Answer)> on_answer = [this](Answer answer) {
    if (answer.make != nullptr) Make(&answer);
    answers.push_back(std::move(answer));
  };
  std::vector<std::string> log;
  std::unique_ptr<ShardJob> job;
};

template <typename T>
std::vector<T> Values(const Answer& answer) {
  std::vector<T> values(answer.payload.size() / sizeof(T));
  std::copy(answer.payload.begin(), answer.payload.end(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace starring

#endif  // STARRING_TESTS_SERVER_SHARD_SHARD_JOB_FIXTURE_H_
