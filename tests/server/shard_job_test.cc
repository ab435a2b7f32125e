#include "server/shard_job.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::ExchangeMessage;

// A job of `world_size` workers at one shard that owns everything, and all answers so far.
class Shard {
 public:
  explicit Shard(int world_size, int64_t elements = 300'000, int64_t bucket_bytes = 1) {
    spec = MakeJob(0, world_size, elements, bucket_bytes);
    auto agreement = ParseAgreement(SerializeAgreement(spec));
    CHECK_OK(agreement);
    auto created = ShardJob::Create({.agreement = *std::move(agreement),
                                     .shard = 0,
                                     .shard_count = 1,
                                     .exchange_deadline = seconds(10),
                                     .join_deadline = seconds(5),
                                     .send = [this](Answer answer) { on_answer(std::move(answer)); },
                                     .now = now,
                                     .stall_times = {.report_after = seconds(4)},
                                     .log = [this](const std::string& line) { log.push_back(line); }});
    CHECK_OK(created);
    job = *std::move(created);
    for (int rank = 0; rank < world_size; ++rank) job->OnLaneOpen({rank, 0});
  }

  // As the lane that writes it does.
  static void Make(Answer* answer) {
    auto values = std::make_shared<std::vector<float>>(answer->made_count);
    answer->make(0, *values);
    answer->payload = std::as_bytes(std::span<const float>(*values));
    answer->keeper = values;
  }

  void Send(LaneId from, ExchangeMessage fields, std::span<const std::byte> payload = {}) {
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
      Send({0, 0}, Fields(ExchangeMessage::INITIAL_PARAMETERS, -1, b), Slice(parameters, b));
    }
  }

  void SendGradient(LaneId from, int64_t step, int bucket, GradientFunction gradient = RoughGradientAt) {
    std::vector<float> values(spec.layout.element_count());
    for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(from.rank, step, static_cast<int64_t>(i));
    Send(from, Fields(ExchangeMessage::GRADIENT, step, bucket), Slice(values, bucket));
  }

  // As a worker that shares `memory`: the gradient goes there, and the message says so.
  void SendSharedGradient(LaneId from, int64_t step, int bucket, SharedMemory* memory) {
    const ElementRange range = spec.buckets.bucket(bucket);
    for (int64_t i = range.begin; i < range.end; ++i) {
      memory->writable_values()[i] = RoughGradientAt(from.rank, step, i);
    }
    SendShared(from, ExchangeMessage::GRADIENT, step, bucket);
  }
  void SendShared(LaneId from, ExchangeMessage::Kind kind, int64_t step, int bucket) {
    ExchangeMessage fields = Fields(kind, step, bucket);
    fields.set_shared(true);
    Send(from, std::move(fields));
  }

  // What the shard answers to SHARE.
  ExchangeMessage Share(LaneId from, const v1::SharedMemory& gradients, const v1::SharedMemory* parameters = nullptr) {
    ExchangeMessage fields = Fields(ExchangeMessage::SHARE, 0, 0);
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
  std::unique_ptr<SharedMemory> OpenMemory(const ExchangeMessage& answer) const {
    auto memory =
        SharedMemory::Open(answer.parameter_memory(), spec.layout.element_count(), SharedMemory::Access::kRead);
    CHECK_OK(memory);
    return *std::move(memory);
  }

  void SendSum(LaneId from, int64_t number, const std::vector<double>& values) {
    Send(from, Fields(ExchangeMessage::SUM, number, 0), std::as_bytes(std::span(values)));
  }

  static ExchangeMessage Fields(ExchangeMessage::Kind kind, int64_t step, int bucket, int vector = 0) {
    ExchangeMessage fields;
    fields.set_kind(kind);
    fields.set_step(step);
    fields.set_bucket(bucket);
    fields.set_vector(vector);
    return fields;
  }

  std::span<const std::byte> Slice(const std::vector<float>& whole, int bucket) const {
    const ElementRange range = spec.buckets.bucket(bucket);
    return std::as_bytes(std::span(whole).subspan(range.begin, range.size()));
  }

  void SendProgress(int rank, WorkPhase phase, int64_t step, bool asks = false) {
    ExchangeMessage fields = Fields(ExchangeMessage::PROGRESS, 0, 0);
    SetProgress({.phase = phase, .step = step}, fields.mutable_progress());
    fields.mutable_progress()->set_asks(asks);
    Send({rank, 0}, std::move(fields));
  }

  // As the server's clock does.
  void Tick(milliseconds duration) {
    for (const auto end = now + duration; now < end;) {
      now += milliseconds(100);
      job->CheckDeadlines(now);
    }
  }

  std::vector<Answer> TakeAnswers() { return std::exchange(answers, {}); }

  JobSpec spec;
  ShardJob::Time now{seconds(1000)};
  std::vector<Answer> answers;
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

TEST(ShardJobTest, SumsAndAnswersEverybodyOnceAllAreThere) {
  Shard shard(2);
  shard.SendInitialParameters();
  EXPECT_EQ(shard.TakeAnswers().size(), static_cast<size_t>(shard.spec.buckets.bucket_count()));
  shard.SendGradient({1, 0}, 0, 2);
  EXPECT_TRUE(shard.answers.empty());
  shard.SendGradient({0, 0}, 0, 2);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].to, (LaneId{0, 0}));
  EXPECT_EQ(answers[1].to, (LaneId{1, 0}));
  const std::vector<float> expected = ReferenceRun(shard.spec, 1, RoughGradientAt);
  const ElementRange range = shard.spec.buckets.bucket(2);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.fields.kind(), ExchangeMessage::PARAMETERS);
    EXPECT_EQ(answer.fields.step(), 0);
    EXPECT_EQ(answer.fields.bucket(), 2);
    EXPECT_EQ(Values<float>(answer), std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
    EXPECT_EQ(answer.payload.data(), answers[0].payload.data());  // one memory for all
  }
}

// Doubled, late and out of order, from every lane: the sum stays exact.
TEST(ShardJobTest, DuplicatesChangeNothing) {
  constexpr int kSteps = 5;
  Shard shard(3);
  const int bucket_count = shard.spec.buckets.bucket_count();
  shard.SendInitialParameters();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < bucket_count; ++i) {
      const int b = static_cast<int>((i * 3 + step) % bucket_count);
      shard.SendGradient({2, 0}, step, b);
      shard.SendGradient({2, 1}, step, b);
      if (step > 0) shard.SendGradient({1, 0}, step - 1, b);  // late: that step is sealed
      shard.SendGradient({0, 0}, step, b);
      shard.SendGradient({2, 0}, step, b);
      if (step > 1) shard.SendGradient({0, 0}, step - 2, b);  // so late that nobody waits
      shard.SendGradient({1, 0}, step, b);
      shard.SendGradient({1, 0}, step, b);
    }
  }
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
  const std::vector<float> expected = ReferenceRun(shard.spec, kSteps, RoughGradientAt);
  shard.TakeAnswers();
  for (int b = 0; b < bucket_count; ++b) {
    shard.SendGradient({0, 0}, kSteps - 1, b);  // asks again for the last answer
    ASSERT_EQ(shard.answers.size(), 1u);
    const ElementRange range = shard.spec.buckets.bucket(b);
    EXPECT_EQ(Values<float>(shard.TakeAnswers()[0]),
              std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
  }
}

TEST(ShardJobTest, ARepeatedGradientIsAnsweredWhereItCameFromLast) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendGradient({1, 0}, 0, 0);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->OnLaneOpen({1, 3});
  shard.SendGradient({1, 3}, 0, 0);
  shard.TakeAnswers();
  shard.SendGradient({0, 0}, 0, 0);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].to, (LaneId{1, 3}));
}

TEST(ShardJobTest, AnAnswerKeepsItsBytesWhileLaterStepsGoOn) {
  Shard shard(1);
  shard.SendInitialParameters();
  shard.TakeAnswers();
  shard.SendGradient({0, 0}, 0, 0);
  const Answer slow = shard.TakeAnswers().at(0);
  const std::vector<float> before = Values<float>(slow);
  for (int64_t step = 1; step < 6; ++step) shard.SendGradient({0, 0}, step, 0);
  EXPECT_EQ(Values<float>(slow), before);
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(ShardJobTest, WorkersOnThisMachineReadParametersWhereTheShardWritesThem) {
  constexpr int kSteps = 4;
  Shard shard(2);
  const std::unique_ptr<SharedMemory> gradients[2] = {shard.MakeMemory(), shard.MakeMemory()};
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients[0]->where()));
  EXPECT_EQ(shard.Share({1, 0}, gradients[1]->where()).parameter_memory().nonce(), parameters->where().nonce());
  shard.SendInitialParameters();
  EXPECT_EQ(Copy(parameters->values()), InitialParameters(shard.spec.layout.element_count()));
  shard.TakeAnswers();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int b = 0; b < shard.spec.buckets.bucket_count(); ++b) {
      for (const int rank : {1, 0, 1}) shard.SendSharedGradient({rank, 0}, step, b, gradients[rank].get());
      const std::vector<Answer> answers = shard.TakeAnswers();
      ASSERT_EQ(answers.size(), 3u);  // the repeat is answered too
      for (const Answer& answer : answers) {
        EXPECT_TRUE(answer.fields.shared());
        EXPECT_TRUE(answer.payload.empty());
      }
    }
    EXPECT_EQ(Copy(parameters->values()), ReferenceRun(shard.spec, step + 1, RoughGradientAt));
  }
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
}

// A gradient that is sent again after a broken connection, when its memory holds the next step's already.
TEST(ShardJobTest, ALateRepeatReadsNoSharedMemory) {
  Shard shard(2);
  const std::unique_ptr<SharedMemory> gradients[2] = {shard.MakeMemory(), shard.MakeMemory()};
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients[0]->where()));
  shard.Share({1, 0}, gradients[1]->where());
  shard.SendInitialParameters();
  for (const int rank : {0, 1}) shard.SendSharedGradient({rank, 0}, 0, 0, gradients[rank].get());
  std::ranges::fill(gradients[0]->writable_values(), 1e30f);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 0, 0);
  for (const int rank : {0, 1}) shard.SendSharedGradient({rank, 0}, 1, 0, gradients[rank].get());
  std::ranges::fill(gradients[0]->writable_values(), 1e30f);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 0, 0);
  shard.SendShared({0, 1}, ExchangeMessage::GRADIENT, 1, 0);
  const ElementRange range = shard.spec.buckets.bucket(0);
  const std::vector<float> expected = ReferenceRun(shard.spec, 2, RoughGradientAt);
  EXPECT_EQ(Copy(parameters->values().subspan(range.begin, range.size())),
            std::vector<float>(expected.begin() + range.begin, expected.begin() + range.end));
}

TEST(ShardJobTest, AWorkerThatSharesLateFindsTheParameters) {
  Shard shard(2);
  shard.SendInitialParameters();
  const auto gradients = shard.MakeMemory();
  const auto parameters = shard.OpenMemory(shard.Share({1, 0}, gradients->where()));
  EXPECT_EQ(Copy(parameters->values()), InitialParameters(shard.spec.layout.element_count()));
  shard.SendShared({1, 0}, ExchangeMessage::FETCH_PARAMETERS, -1, 2);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].fields.shared());
}

TEST(ShardJobTest, MemoryThatCannotBeSharedIsAnsweredWithNone) {
  Shard shard(1);
  v1::SharedMemory elsewhere = shard.MakeMemory()->where();  // gone
  EXPECT_FALSE(shard.Share({0, 0}, elsewhere).has_parameter_memory());
  auto shorter = SharedMemory::Create(shard.spec.layout.element_count() - 1);
  ASSERT_TRUE(shorter.ok());
  EXPECT_FALSE(shard.Share({0, 0}, (*shorter)->where()).has_parameter_memory());
  const auto gradients = shard.MakeMemory();
  EXPECT_FALSE(shard.Share({0, 0}, gradients->where(), &elsewhere).has_parameter_memory());
  // All workers must name one memory for parameters.
  const auto parameters = shard.MakeMemory();
  const auto others = shard.MakeMemory();
  EXPECT_TRUE(shard.Share({0, 0}, gradients->where(), &parameters->where()).has_parameter_memory());
  EXPECT_FALSE(shard.Share({0, 0}, gradients->where(), &others->where()).has_parameter_memory());
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
}

TEST(ShardJobTest, ASharedGradientWithoutSharedMemoryFailsTheJob) {
  for (const auto kind : {ExchangeMessage::GRADIENT, ExchangeMessage::FETCH_PARAMETERS}) {
    Shard shard(1);
    shard.SendInitialParameters();
    shard.SendShared({0, 0}, kind, 0, 0);
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
    EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("none is shared"));
  }
}

TEST(ShardJobTest, FetchesWaitForTheInitialParameters) {
  Shard shard(2);
  shard.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 1));
  EXPECT_TRUE(shard.answers.empty());
  shard.SendInitialParameters();
  shard.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 1));  // once more
  int parameters = 0;
  for (const Answer& answer : shard.TakeAnswers()) {
    if (answer.fields.kind() != ExchangeMessage::PARAMETERS) continue;
    ++parameters;
    EXPECT_EQ(answer.fields.step(), -1);
    EXPECT_EQ(answer.to, (LaneId{1, 0}));
    EXPECT_EQ(answer.payload.size(), static_cast<size_t>(shard.spec.buckets.bucket(1).size() * 4));
  }
  EXPECT_EQ(parameters, 2);
}

TEST(ShardJobTest, KeepsTheOptimizersState) {
  Shard shard(1);
  const std::vector<float> state = InitialParameters(shard.spec.layout.element_count());
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::INITIAL_STATE, -1, 1), shard.Slice(state, 1));
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ACCEPTED);
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 1));
  const Answer answer = shard.TakeAnswers().at(0);
  EXPECT_EQ(answer.fields.kind(), ExchangeMessage::STATE);
  const ElementRange range = shard.spec.buckets.bucket(1);
  EXPECT_EQ(Values<float>(answer), std::vector<float>(state.begin() + range.begin, state.begin() + range.end));
}

TEST(ShardJobTest, SumsDoublesInRankOrder) {
  Shard shard(3);
  // In rank order this is 1: the large values cancel first.
  shard.SendSum({2, 0}, 0, {1.0, 3});
  shard.SendSum({1, 0}, 0, {-1e300, 2});
  shard.SendSum({1, 1}, 0, {-1e300, 2});
  EXPECT_TRUE(shard.answers.empty());
  shard.SendSum({0, 0}, 0, {1e300, 1});
  std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) EXPECT_THAT(Values<double>(answer), ElementsAre(1.0, 6));
  EXPECT_EQ(answers[1].to, (LaneId{1, 1}));
  // Rank 1's answer was lost, rank 0 is in the next sum already.
  shard.SendSum({0, 0}, 1, {5});
  shard.SendSum({1, 0}, 0, {-1e300, 2});
  answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.step(), 0);
  EXPECT_THAT(Values<double>(answers[0]), ElementsAre(1.0, 6));
}

TEST(ShardJobTest, FinishesWhenAllHave) {
  Shard shard(2);
  const ExchangeMessage finish = Shard::Fields(ExchangeMessage::FINISH, 0, 0);
  shard.Send({0, 0}, finish);
  shard.Send({0, 0}, finish);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.Send({1, 0}, finish);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFinished);
  EXPECT_EQ(shard.TakeAnswers().size(), 2u);
  shard.Send({1, 0}, finish);  // the answer was lost
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::FINISHED);
}

TEST(ShardJobTest, AnAbortReachesEveryWorkerAndThoseWhoComeBackLater) {
  Shard shard(3);
  ExchangeMessage abort = Shard::Fields(ExchangeMessage::ABORT, 0, 0);
  abort.set_text("the gradient of fc1.weight is NaN");
  shard.Send({1, 0}, abort);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.fields.kind(), ExchangeMessage::ERROR);
    EXPECT_EQ(answer.fields.code(), static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_THAT(answer.fields.text(), AllOf(HasSubstr("rank 1"), HasSubstr("fc1.weight")));
  }
  shard.job->OnLaneOpen({2, 1});
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ERROR);
  shard.SendGradient({0, 0}, 0, 0);  // too late to matter
  EXPECT_TRUE(shard.answers.empty());
}

// A process' exit code, by which a launcher finds the cause, comes from the status' code.
TEST(ShardJobTest, ThoseLeftByARankThatMissesAPeerMissOneToo) {
  using enum absl::StatusCode;
  for (const auto& [code, expected] :
       {std::pair(kUnavailable, kUnavailable), std::pair(kDeadlineExceeded, kDeadlineExceeded),
        std::pair(kInvalidArgument, kAborted), std::pair(kOk, kAborted)}) {
    Shard shard(2);
    ExchangeMessage abort = Shard::Fields(ExchangeMessage::ABORT, 0, 0);
    abort.set_code(static_cast<int>(code));
    shard.Send({1, 0}, abort);
    EXPECT_EQ(shard.job->status().code(), expected);
    EXPECT_EQ(shard.TakeAnswers().at(0).fields.code(), static_cast<int>(expected));
  }
}

TEST(ShardJobTest, ALateContributionNamesRankBucketAndStep) {
  Shard shard(3);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 3; ++rank) shard.SendGradient({rank, 0}, 0, 1);
  shard.now += seconds(100);
  shard.SendGradient({0, 0}, 1, 1);
  shard.SendGradient({2, 0}, 1, 1);
  shard.TakeAnswers();
  shard.now += seconds(10);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.TakeAnswers();  // questions for progress
  shard.now += milliseconds(1);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_EQ(shard.job->status(),
            absl::DeadlineExceededError("rank 1 has not contributed bucket 1 of step 1 within 10 s"));
  EXPECT_EQ(shard.TakeAnswers().size(), 3u);
}

// What was sent of one kind, as "RANK: TEXT".
std::vector<std::string> TextsOf(const std::vector<Answer>& answers, ExchangeMessage::Kind kind) {
  std::vector<std::string> texts;
  for (const Answer& answer : answers) {
    if (answer.fields.kind() == kind) texts.push_back(absl::StrCat(answer.to.rank, ": ", answer.fields.text()));
  }
  return texts;
}

TEST(ShardJobTest, AStuckJobNamesWhoDoesNotAnswerToAllOthersAndTheLog) {
  Shard shard(3);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 3; ++rank) shard.SendGradient({rank, 0}, 0, 1);
  shard.SendProgress(1, WorkPhase::kForward, 1);
  shard.SendGradient({0, 0}, 1, 1);
  shard.SendGradient({2, 0}, 1, 1);
  shard.TakeAnswers();
  shard.Tick(milliseconds(1'900));
  EXPECT_TRUE(shard.answers.empty());
  shard.Tick(milliseconds(100));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::ASK_PROGRESS), ElementsAre("0: ", "1: ", "2: "));
  shard.SendProgress(0, WorkPhase::kExchange, 1);
  shard.SendProgress(2, WorkPhase::kExchange, 1);
  shard.Tick(milliseconds(1'500));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::ASK_PROGRESS), ElementsAre("0: ", "2: "));
  shard.SendProgress(0, WorkPhase::kExchange, 1);
  shard.SendProgress(2, WorkPhase::kExchange, 1);
  EXPECT_THAT(shard.log, ElementsAre());
  shard.Tick(milliseconds(500));
  const std::string sentence =
      "stuck for 4.0 s (rank 1 has not contributed bucket 1 of step 1): rank 1 does not answer: when last heard, 4.0 s "
      "ago, it was in forward of step 1";
  EXPECT_THAT(shard.log, ElementsAre(sentence));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre("0: " + sentence, "2: " + sentence));
  shard.Tick(milliseconds(2'000));
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre());
  shard.SendGradient({1, 0}, 1, 1);
  EXPECT_THAT(TextsOf(shard.TakeAnswers(), ExchangeMessage::STALL), ElementsAre("0: ", "2: "));
  EXPECT_THAT(shard.log, ElementsAre(sentence, "the job goes on after 6.0 s"));
}

TEST(ShardJobTest, TheDeadlineEndsTheJobWithTheSameSentence) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendProgress(1, WorkPhase::kCheckpoint, 4);
  shard.SendSum({0, 0}, 0, {1});
  for (int i = 0; i < 101; ++i) {
    shard.SendProgress(0, WorkPhase::kExchange, 5);
    shard.Tick(milliseconds(100));
  }
  EXPECT_EQ(shard.job->status(),
            absl::DeadlineExceededError("rank 1 has not joined in sum 0 within 10 s: rank 1 does not answer: when last "
                                        "heard, 10.1 s ago, it was in the checkpoint after step 4"));
}

TEST(ShardJobTest, WhileWorkersSayThatTheyGoOnNothingIsReported) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendSum({0, 0}, 0, {1});
  for (int i = 0; i < 90; ++i) {
    shard.SendProgress(0, WorkPhase::kExchange, 5);
    shard.SendProgress(1, WorkPhase::kEvaluation, i);
    shard.Tick(milliseconds(100));
  }
  EXPECT_THAT(shard.log, ElementsAre());
}

TEST(ShardJobTest, AWorkerThatAsksWhetherTheServerAnswersIsAnswered) {
  Shard shard(2);
  shard.SendProgress(1, WorkPhase::kForward, 0);
  EXPECT_TRUE(shard.TakeAnswers().empty());
  shard.SendProgress(1, WorkPhase::kForward, 0, /*asks=*/true);
  const std::vector<Answer> answers = shard.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.kind(), ExchangeMessage::HERE);
  EXPECT_EQ(answers[0].to, (LaneId{1, 0}));
}

TEST(ShardJobTest, SeveralMissingRanksHave) {
  Shard shard(3);
  shard.SendSum({1, 0}, 0, {1});
  shard.job->CheckDeadlines(shard.now + milliseconds(10'001));
  EXPECT_EQ(shard.job->status(), absl::DeadlineExceededError("ranks 0, 2 have not joined in sum 0 within 10 s"));
}

TEST(ShardJobTest, ALateContributionOfAWorkerThatIsGoneSaysSo) {
  Shard shard(2);
  shard.SendInitialParameters();
  shard.SendGradient({0, 0}, 0, 0);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.now += milliseconds(10'001);
  shard.job->CheckDeadlines(shard.now);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("rank 1 has no connection to shard 0 any more"));
}

TEST(ShardJobTest, ALateSumInitialParameterOrEndNamesTheRank) {
  Shard sum(2);
  sum.SendSum({0, 0}, 0, {1});
  sum.job->CheckDeadlines(sum.now + milliseconds(10'001));
  EXPECT_EQ(sum.job->status(), absl::DeadlineExceededError("rank 1 has not joined in sum 0 within 10 s"));

  Shard fetch(2);
  fetch.Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_PARAMETERS, -1, 0));
  fetch.job->CheckDeadlines(fetch.now + milliseconds(10'001));
  EXPECT_THAT(std::string(fetch.job->status().message()), AllOf(HasSubstr("rank 0"), HasSubstr("bucket 0")));

  Shard finish(2);
  finish.Send({1, 0}, Shard::Fields(ExchangeMessage::FINISH, 0, 0));
  finish.job->CheckDeadlines(finish.now + milliseconds(10'001));
  EXPECT_EQ(finish.job->status(), absl::DeadlineExceededError("rank 0 has not finished within 10 s"));
}

TEST(ShardJobTest, AWorkerThatDoesNotComeBackIsNamed) {
  Shard shard(2);
  shard.job->OnLaneOpen({1, 1});
  shard.job->OnLaneClosed({1, 1}, shard.now);
  shard.job->CheckDeadlines(shard.now + seconds(1000));  // the other lane is open
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->CheckDeadlines(shard.now + seconds(10));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneOpen({1, 0});  // back in time
  shard.job->CheckDeadlines(shard.now + seconds(11));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning);
  shard.job->OnLaneClosed({1, 0}, shard.now);
  shard.job->CheckDeadlines(shard.now + milliseconds(10'001));
  EXPECT_EQ(shard.job->status(),
            absl::UnavailableError("rank 1 is gone: it has had no connection to shard 0 for 10 s"));
}

TEST(ShardJobTest, AWrongMessageFailsTheJobNamingTheRank) {
  struct Case {
    const char* name;
    std::function<void(Shard*)> send;
    std::string expected;
  };
  const std::vector<float> few(10);
  const auto bytes = std::as_bytes(std::span(few));
  const Case cases[] = {
      {"bucket",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, 99), bytes);
       },
       "99"},
      {"negative",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, -1), bytes);
       },
       "-1"},
      {"length",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::GRADIENT, 0, 0), bytes);
       },
       "40"},
      {"step",
       [](Shard* s) {
         s->SendGradient({1, 0}, 3, 0);
       },
       "3"},
      {"vector",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0, 1));
       },
       "vector 1"},
      {"sum number",
       [](Shard* s) {
         s->SendSum({1, 0}, 2, {1.0});
       },
       "sum 2"},
      {"sum size",
       [](Shard* s) {
         s->SendSum({1, 0}, 0, std::vector<double>(5000));
       },
       "40000"},
      {"sum bytes",
       [&](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::SUM, 0, 0), bytes.subspan(1));
       },
       "39"},
      {"sums differ",
       [](Shard* s) {
         s->SendSum({0, 0}, 0, {1.0});
         s->SendSum({1, 0}, 0, {1.0, 2.0});
       },
       "2 values"},
      {"sums of different purposes",
       [&](Shard* s) {
         for (int rank = 0; rank < 2; ++rank) {
           ExchangeMessage sum = Shard::Fields(ExchangeMessage::SUM, 0, 0);
           sum.set_sum_purpose(static_cast<int>(rank == 0 ? SumPurpose::kStopVote : SumPurpose::kEpoch));
           s->Send({rank, 0}, sum, bytes.first(16));
         }
       },
       "rank 1 adds 2 values for the end of an epoch, rank 0 adds 2 values for a vote to stop"},
      {"kind",
       [](Shard* s) {
         s->Send({1, 0}, Shard::Fields(ExchangeMessage::PARAMETERS, 0, 0));
       },
       "17"},
  };
  for (const Case& c : cases) {
    Shard shard(2);
    shard.SendInitialParameters();
    shard.TakeAnswers();
    c.send(&shard);
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed) << c.name;
    EXPECT_THAT(std::string(shard.job->status().message()), AllOf(HasSubstr("rank 1"), HasSubstr(c.expected)))
        << c.name;
  }
}

TEST(ShardJobTest, DescribesItself) {
  Shard shard(2);
  shard.SendInitialParameters();
  for (int rank = 0; rank < 2; ++rank) shard.SendGradient({rank, 0}, 0, 0);
  shard.SendGradient({0, 0}, 0, 1);
  v1::GetStatusReply reply;
  shard.job->Describe(&reply);
  EXPECT_EQ(reply.state(), v1::GetStatusReply::RUNNING);
  EXPECT_EQ(reply.world_size(), 2);
  EXPECT_EQ(reply.steps_complete(), 0);
  ASSERT_EQ(reply.workers_size(), 2);
  EXPECT_EQ(reply.workers(0).contributions(), 2);
  EXPECT_EQ(reply.workers(0).buckets_missing(), 0);
  EXPECT_EQ(reply.workers(1).contributions(), 1);
  EXPECT_EQ(reply.workers(1).buckets_missing(), 1);
  EXPECT_EQ(reply.workers(1).lanes_open(), 1);
  EXPECT_GT(reply.bytes_received(), 0);
  EXPECT_GT(reply.bytes_sent(), 0);
}

// The thread that sums answers GetStatus, for whomever and as often as they ask.
TEST(ShardJobTest, DescribingManyBucketsTakesNoLonger) {
  const auto shortest_of = [](int64_t elements) {
    Shard shard(1, elements);
    shard.SendInitialParameters();
    auto shortest = std::chrono::nanoseconds::max();
    for (int i = 0; i < 1000; ++i) {
      v1::GetStatusReply reply;
      const auto begin = std::chrono::steady_clock::now();
      shard.job->Describe(&reply);
      shortest = std::min<std::chrono::nanoseconds>(shortest, std::chrono::steady_clock::now() - begin);
    }
    return shortest;
  };
  EXPECT_LT(shortest_of(512 * kChunkElements), 2 * shortest_of(kChunkElements));
}

TEST(ShardJobTest, CountsTheStepsThatAreOverForEveryBucket) {
  Shard shard(1, 3 * kChunkElements);
  const auto complete_after = [&](int64_t step, int bucket) {
    shard.SendGradient({0, 0}, step, bucket);
    v1::GetStatusReply reply;
    shard.job->Describe(&reply);
    return reply.steps_complete();
  };
  shard.SendInitialParameters();
  for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(complete_after(step, 0), 0);  // the others are behind
  EXPECT_EQ(complete_after(0, 1), 0);
  EXPECT_EQ(complete_after(1, 1), 0);
  EXPECT_EQ(complete_after(0, 2), 1);
  EXPECT_EQ(complete_after(1, 2), 2);
  EXPECT_EQ(complete_after(2, 2), 2);
  EXPECT_EQ(complete_after(2, 1), 3);
}

TEST(ShardJobTest, ARepeatedInitialStateChangesNothing) {
  Shard shard(2);
  const std::vector<float> state = InitialParameters(shard.spec.layout.element_count());
  const ExchangeMessage initial_state = Shard::Fields(ExchangeMessage::INITIAL_STATE, -1, 1);
  shard.Send({0, 0}, initial_state, shard.Slice(state, 1));
  shard.SendInitialParameters();
  // Rank 0's lane broke before it got the answer; rank 1 has contributed meanwhile.
  shard.SendGradient({1, 0}, 0, 1);
  shard.TakeAnswers();
  shard.Send({0, 0}, initial_state, shard.Slice(state, 1));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kRunning) << shard.job->status();
  EXPECT_EQ(shard.TakeAnswers().at(0).fields.kind(), ExchangeMessage::ACCEPTED);
}

TEST(ShardJobTest, OnlyRank0SaysWhatAllStartFrom) {
  for (const auto kind : {ExchangeMessage::INITIAL_PARAMETERS, ExchangeMessage::INITIAL_STATE}) {
    Shard shard(2);
    const std::vector<float> values = InitialParameters(shard.spec.layout.element_count());
    shard.Send({1, 0}, Shard::Fields(kind, -1, 0), shard.Slice(values, 0));
    EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
    EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("rank 0 alone"));
  }
}

TEST(ShardJobTest, CountsTheBucketsThatWaitForAWorker) {
  Shard shard(3, 3 * 3 * 32768);
  ASSERT_EQ(shard.spec.buckets.bucket_count(), 3);
  const auto missing = [&] {
    v1::GetStatusReply reply;
    shard.job->Describe(&reply);
    std::vector<int> counts;
    for (const auto& worker : reply.workers()) counts.push_back(worker.buckets_missing());
    return counts;
  };
  shard.SendInitialParameters();
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
  shard.SendGradient({0, 0}, 0, 0);
  shard.SendGradient({0, 0}, 0, 1);
  shard.SendGradient({2, 0}, 0, 1);
  shard.SendGradient({2, 0}, 0, 1);  // once more
  EXPECT_THAT(missing(), ElementsAre(0, 2, 1));
  shard.SendGradient({1, 0}, 0, 1);
  EXPECT_THAT(missing(), ElementsAre(0, 1, 1));
  shard.SendGradient({1, 0}, 0, 0);
  shard.SendGradient({2, 0}, 0, 0);
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
  shard.SendGradient({1, 0}, 1, 2);  // too early: fails the job, and counts nothing
  EXPECT_THAT(missing(), ElementsAre(0, 0, 0));
}

TEST(ShardJobTest, StateIsCopiedWhenItsTurnHasCome) {
  Shard shard(1);
  std::vector<Answer> waiting;
  shard.on_answer = [&](Answer answer) { waiting.push_back(std::move(answer)); };
  shard.Send({0, 0}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0));
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_TRUE(waiting[0].payload.empty());
  ASSERT_NE(waiting[0].make, nullptr);
  EXPECT_EQ(waiting[0].made_count, shard.spec.buckets.bucket(0).size());
  std::vector<float> part(2, 5.0f);
  waiting[0].make(waiting[0].made_count - 2, part);
  EXPECT_THAT(part, ElementsAre(0.0f, 0.0f));
  // On another lane there could be two at a time.
  shard.job->OnLaneOpen({0, 1});
  shard.Send({0, 1}, Shard::Fields(ExchangeMessage::FETCH_STATE, 0, 0));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("lane 0"));
}

TEST(ShardJobTest, APartOfAShortSliceIsRefused) {
  Shard shard(1);
  shard.SendInitialParameters();
  const std::vector<float> values(shard.spec.layout.element_count());
  ExchangeMessage fields = Shard::Fields(ExchangeMessage::GRADIENT, 0, 0);
  fields.set_part(1);
  shard.Send({0, 0}, fields, shard.Slice(values, 0));
  EXPECT_EQ(shard.job->state(), ShardJob::State::kFailed);
  EXPECT_THAT(std::string(shard.job->status().message()), HasSubstr("part 1"));
}

TEST(ShardJobTest, MemoryThatNobodyReadsIsNotWrittenTo) {
  Shard shard(2);
  shard.SendInitialParameters();
  const auto gradients = shard.MakeMemory();
  const auto parameters = shard.OpenMemory(shard.Share({0, 0}, gradients->where()));
  // Another shard was out of reach, so the worker goes on by socket.
  const std::vector<float> before = Copy(parameters->values());
  for (int rank = 0; rank < 2; ++rank) shard.SendGradient({rank, 0}, 0, 0);
  EXPECT_EQ(shard.TakeAnswers().size(), 2u);
  EXPECT_EQ(Copy(parameters->values()), before);
}

}  // namespace
}  // namespace starring
