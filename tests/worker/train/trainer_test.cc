#include "worker/train/trainer.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/watch/progress_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/common/full_disk.h"
#include "tests/common/transport/in_memory_transport.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/exchange/local/local_exchange.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/step/training_step.h"
#include "worker/train/run_history.h"

namespace starring {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A local exchange that fails when `failing_step` is submitted, and shows what a test asks about sums.
class FailingExchange final : public GradientExchange, private Snapshots {
 public:
  struct Seen {
    size_t longest_sum = 0;
    std::vector<WorkPhase> evaluation_phases;  // in which sums of an evaluation were awaited
    std::vector<int64_t> side_value_steps;     // of the snapshots that got side values
    std::vector<int64_t> read_steps;           // of the snapshots whose state was read
    bool is_deterministic = true;
    bool has_finished = false;
    bool has_left = false;
  };
  FailingExchange(int64_t failing_step, const ProgressState* state, std::vector<double> side_values, Seen* seen)
      : failing_step_(failing_step),
        state_(state),
        side_values_(std::move(side_values)),
        seen_(seen),
        inner_(CreateLocalExchange()) {}
  absl::Status Start(const JobSpec& job, std::span<float> parameters) override {
    seen_->is_deterministic = job.deterministic;
    return inner_->Start(job, parameters);
  }
  void Submit(const Submission& submission) override { inner_->Submit(submission); }
  absl::Status Await(int64_t step, int bucket) override {
    return step == failing_step_ ? absl::UnavailableError("rank 1 is gone") : inner_->Await(step, bucket);
  }
  absl::Status Sum(SumPurpose purpose, std::span<double> values) override {
    seen_->longest_sum = std::max(seen_->longest_sum, values.size());
    if (purpose == SumPurpose::kEvaluation || purpose == SumPurpose::kEpoch) {
      seen_->evaluation_phases.push_back(state_->Read(ProgressState::Clock::now()).phase);
    }
    return inner_->Sum(purpose, values);
  }
  Snapshots* snapshots() override { return this; }
  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override {
    return inner_->GatherOptimizerState(state);
  }
  void Abort(const absl::Status& why) override { inner_->Abort(why); }
  absl::Status Finish() override {
    seen_->has_finished = true;
    return inner_->Finish();
  }
  ExchangeCounters counters() const override { return inner_->counters(); }

 private:
  void SubmitSideValues(int64_t step, const std::vector<double>&) override { seen_->side_value_steps.push_back(step); }
  absl::StatusOr<std::vector<double>> FetchSideValues() override { return side_values_; }
  void BeginRead(int64_t step, const std::shared_ptr<std::vector<std::vector<float>>>&) override {
    seen_->read_steps.push_back(step);
  }
  bool HasRead() override { return true; }
  absl::Status AwaitRead() override { return absl::OkStatus(); }
  absl::Status Leave() override {
    seen_->has_left = true;
    return absl::OkStatus();
  }

  const int64_t failing_step_;
  const ProgressState* const state_;
  const std::vector<double> side_values_;
  Seen* const seen_;
  const std::unique_ptr<GradientExchange> inner_;
};

// Logistic regression on 20 tiny images in batches of 6: 4 steps an epoch.
class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.model = "logreg";
    options_.dataset = {.name = "synthetic",
                        .synthetic_train_count = 20,
                        .synthetic_test_count = 5,
                        .synthetic_height = 4,
                        .synthetic_width = 4};
    options_.epochs = 5;
    options_.global_batch = 6;
    options_.seed = 0;
    options_.schedule = {};
    options_.bucket_bytes = 1 << 20;
    options_.checkpoint_every_epochs = 2;
    options_.exchange_deadline = options_.join_deadline = absl::Seconds(60);
    options_.checkpoint_dir = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(options_.checkpoint_dir);
  }

  absl::StatusOr<TrainResult> Train() {
    const TrainAndTest data = LoadDataset(options_.dataset).value();
    const auto device = CreateCpuDevice({.threads = 1}).value();
    const NetworkOptions shape{.height = 4, .width = 4, .channels = 1, .outputs = 10, .batch_max = kEvaluationBatch};
    const auto network = Network::Create(LayerFile::Load(options_.model).value(), shape, device.get()).value();
    buckets_ = BucketMap::Create({.element_count = network->layout().element_count(),
                                  .bucket_bytes = options_.bucket_bytes,
                                  .world_size = 1})
                   .value();
    const auto exchange = std::make_unique<FailingExchange>(failing_step_, &state_, side_values_, &seen_);
    CheckpointWriter writer(options_.checkpoint_deadline);
    const auto step = CreateCpuTrainingStep({.network = network.get(),
                                             .exchange = exchange.get(),
                                             .buckets = &buckets_,
                                             .rank = 0,
                                             .micro_batches = static_cast<int>(options_.micro_batches),
                                             .leaf_owners = segment_.leaf_owners,
                                             .exchange_part = StepPart::kOptimizer},
                                            device.get())
                          .value();
    segment_.stop = [this] {
      const int64_t next_step = asked_++;
      if (std::ranges::count(periodic_, next_step) > 0) AwaitSaved(next_step);
      return next_step == stop_at_;
    };
    return starring::Train({.worker = &options_,
                            .data = &data,
                            .network = network.get(),
                            .exchange = exchange.get(),
                            .buckets = &buckets_,
                            .step = step.get(),
                            .checkpoint_writer = &writer,
                            .report = report_,
                            .state = &state_,
                            .segment = segment_});
  }

  // From here on, Train() is a generation's, with two leaves.
  void BeElastic(int64_t first_step) {
    options_.micro_batches = 2;
    segment_ = {.number = first_step > 0 ? 2 : 1,
                .first_step = first_step,
                .from_snapshot = first_step > 0,
                .snapshot_every = 3,
                .leaf_owners = {0, 0}};
  }

  // Trains `model` as one of the two ranks of `ring`. Returns the network's buffers afterwards, and fills `trained`.
  std::vector<std::vector<float>> TrainInRing(const LayerFile& model, const TrainAndTest& data, int rank,
                                              InMemoryNetwork* ring, TrainResult* trained = nullptr) {
    WorkerOptions options = options_;
    options.sync = Sync::kRing;
    options.transport = TransportKind::kMpi;
    options.rank = rank;
    options.world_size = 2;
    const auto device = CreateCpuDevice({.threads = 1}).value();
    const NetworkOptions shape{
        .height = 4, .width = 4, .channels = 1, .outputs = 10, .batch_max = options.global_batch / 2};
    const auto network = Network::Create(model, shape, device.get()).value();
    const BucketMap buckets =
        BucketMap::Create(
            {.element_count = network->layout().element_count(), .bucket_bytes = options.bucket_bytes, .world_size = 2})
            .value();
    PeerExchange exchange(ring->CreateTransport(rank), PeerExchange::Options{});
    const auto step =
        CreateCpuTrainingStep({.network = network.get(), .exchange = &exchange, .buckets = &buckets, .rank = rank},
                              device.get())
            .value();
    CheckpointWriter writer(options.checkpoint_deadline);
    const auto result = starring::Train({.worker = &options,
                                         .data = &data,
                                         .network = network.get(),
                                         .exchange = &exchange,
                                         .buckets = &buckets,
                                         .step = step.get(),
                                         .checkpoint_writer = &writer,
                                         .report = [](const TrainResult&) { return absl::OkStatus(); }});
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(exchange.Release());
    if (trained != nullptr && result.ok()) *trained = *result;
    std::vector<std::vector<float>> values;
    for (const NetworkBuffer& buffer : network->buffers()) {
      values.emplace_back(buffer.values.size());
      CHECK_OK(network->ReadBuffer(buffer, values.back()));
    }
    return values;
  }

  // Waits until a checkpoint is on the disk. Steps are faster than writing one: the next periodic checkpoint would be
  // skipped because this one is still being written.
  void AwaitSaved(int64_t step) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (std::ranges::count(SavedSteps(), step) == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  }

  // The steps of the checkpoints on the disk, ascending.
  std::vector<int64_t> SavedSteps() {
    std::vector<int64_t> steps;
    for (const CheckpointFolder& folder : ListCheckpointFolders(options_.checkpoint_dir)) steps.push_back(folder.step);
    std::ranges::reverse(steps);
    return steps;
  }

  WorkerOptions options_;
  BucketMap buckets_;
  int64_t failing_step_ = -1;
  FailingExchange::Seen seen_;
  ProgressState state_;
  Segment segment_;
  std::vector<double> side_values_;  // of the snapshot with which the generation begins
  std::function<absl::Status(const TrainResult&)> report_ = [](const TrainResult&) { return absl::OkStatus(); };
  int64_t stop_at_ = -1;
  int64_t asked_ = 0;
  std::vector<int64_t> periodic_;  // steps whose periodic checkpoints must be written
};

TEST_F(TrainerTest, SavesEveryKEpochsAndAtTheEnd) {
  periodic_ = {8, 16};
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->next_step, 20);
  EXPECT_TRUE(result->checkpoint_saved);
  EXPECT_THAT(SavedSteps(), ElementsAre(16, 20));  // the newest two of 8, 16 and 20 are kept
  EXPECT_EQ(result->bucket_bytes, buckets_.bucket_bytes());
}

TEST_F(TrainerTest, TheJobSaysWhetherFlagsAndSeedDecideTheBits) {
  options_.checkpoint_dir = "";
  ASSERT_TRUE(Train().ok());
  EXPECT_TRUE(seen_.is_deterministic);
  options_.sync = Sync::kMpi;
  options_.transport = TransportKind::kMpi;
  ASSERT_TRUE(Train().ok());
  EXPECT_FALSE(seen_.is_deterministic);
}

TEST_F(TrainerTest, EndsAtMaxStepsInTheMiddleOfAnEpoch) {
  options_.max_steps = 7;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 7);
  EXPECT_EQ(result->total_steps, 7);
  EXPECT_EQ(result->steps_per_epoch, 4);
  ASSERT_EQ(result->epochs.size(), 2);  // the second is cut short, and reported
  EXPECT_EQ(result->epochs[1].epoch, 1);
  EXPECT_THAT(SavedSteps(), ElementsAre(7));
}

TEST_F(TrainerTest, SavesEverySoManyStepsAndWhereItIsStopped) {
  options_.checkpoint_every_epochs = 100;
  options_.checkpoint_every_steps = 6;
  periodic_ = {6, 12};
  stop_at_ = 15;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped_early);
  EXPECT_EQ(result->next_step, 15);
  EXPECT_THAT(SavedSteps(), ElementsAre(12, 15));
}

// Nothing is learnt, so no epoch is better than the first.
TEST_F(TrainerTest, EndsAfterSoManyEpochsWithoutALowerLoss) {
  options_.schedule.base = 0;
  options_.early_stop = 2;
  options_.save_best = true;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->converged);
  EXPECT_FALSE(result->stopped_early);
  EXPECT_EQ(result->epochs.size(), 3u);
  EXPECT_EQ(result->next_step, 12);
  EXPECT_EQ(result->best.epoch, 1);
  EXPECT_EQ(result->best.test_loss, result->epochs[0].test_loss);
  ASSERT_TRUE(result->quality.has_value()) << "of an epoch whose end was not known when it was evaluated";
  EXPECT_EQ(result->quality->loss_mean, result->epochs[2].test_loss);
  EXPECT_TRUE(std::filesystem::exists(options_.checkpoint_dir + "/best/step-000000004/manifest.json"));
  EXPECT_EQ(result->best_saved_step, 4);
  EXPECT_THAT(SavedSteps(), ElementsAre(8, 12));
  // A resumed run knows it too, and one with more patience goes on.
  options_.resume = true;
  const auto same = Train();
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->steps, 0);
  EXPECT_TRUE(same->converged);
  options_.early_stop = 3;
  const auto patient = Train();
  ASSERT_TRUE(patient.ok()) << patient.status();
  EXPECT_EQ(patient->next_step, 16);
  EXPECT_EQ(patient->best.epoch, 1);
}

TEST_F(TrainerTest, EachBetterEpochIsSaved) {
  options_.save_best = true;
  options_.early_stop = 3;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->converged);
  const auto best = std::ranges::min_element(result->epochs, {}, &EpochSummary::test_loss);
  EXPECT_EQ(result->best.epoch, best->epoch + 1);
  EXPECT_EQ(result->best.test_loss, best->test_loss);
  const std::string folder = options_.checkpoint_dir + "/best";
  EXPECT_EQ(ListCheckpointFolders(folder).front().step, 4 * result->best.epoch);
  const auto head = ReadCheckpointHead(ListCheckpointFolders(folder).front().path);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->best.epoch, result->best.epoch);
  EXPECT_EQ(head->best.test_loss, result->best.test_loss);
}

// The epoch that --max_steps has cut would be evaluated again after a resume.
TEST_F(TrainerTest, AnEpochThatIsCutIsNotTheBest) {
  options_.save_best = true;
  options_.max_steps = 7;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->epochs.size(), 2u);
  EXPECT_EQ(result->best.epoch, 1);
  EXPECT_EQ(result->best_saved_step, 4);
}

TEST_F(TrainerTest, ARunThatIsOverSavesNothingAgain) {
  periodic_ = {8, 16};
  ASSERT_TRUE(Train().ok());
  std::filesystem::remove_all(options_.checkpoint_dir + "/step-000000016");
  options_.resume = true;
  const auto again = Train();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->steps, 0);
  EXPECT_FALSE(again->checkpoint_saved);
  EXPECT_THAT(SavedSteps(), ElementsAre(20));
}

TEST_F(TrainerTest, ARunWithoutGenerationsStopsAtOnce) {
  stop_at_ = 0;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped_early);
  EXPECT_FALSE(result->segment_over);
  EXPECT_EQ(result->steps, 0);
  EXPECT_EQ(result->generation, 0);
  EXPECT_TRUE(seen_.has_finished);
  EXPECT_THAT(seen_.side_value_steps, IsEmpty()) << "this run has no snapshots";
  EXPECT_THAT(seen_.read_steps, IsEmpty());
}

TEST_F(TrainerTest, AGenerationIsSavedAndStopsAtSnapshots) {
  BeElastic(0);
  options_.checkpoint_every_steps = 2;
  stop_at_ = 0;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->segment_over);
  EXPECT_FALSE(result->stopped_early);
  EXPECT_EQ(result->next_step, 3);
  EXPECT_THAT(seen_.side_value_steps, ElementsAre(3));
  EXPECT_THAT(seen_.read_steps, ElementsAre(3));
  EXPECT_THAT(SavedSteps(), ElementsAre(3)) << "the checkpoint that is due at step 2 waits for a snapshot";
  EXPECT_TRUE(seen_.has_left);
  EXPECT_FALSE(seen_.has_finished);
}

TEST_F(TrainerTest, AGenerationTrainsAStepBeforeItStops) {
  BeElastic(3);
  side_values_ = ToValues({});
  options_.checkpoint_dir = "";
  stop_at_ = 0;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->next_step, 4) << "the end of the epoch has a snapshot";
  EXPECT_TRUE(result->segment_over);
}

TEST_F(TrainerTest, AGenerationThatEndsTheRunTrainsNoStep) {
  BeElastic(3);
  side_values_ = ToValues({});
  segment_.ends_run = true;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped_early);
  EXPECT_EQ(result->steps, 0);
  EXPECT_EQ(result->generation, 2);
  EXPECT_THAT(SavedSteps(), ElementsAre(3));
  EXPECT_TRUE(seen_.has_finished);
}

TEST_F(TrainerTest, AGenerationRefusesTheCheckpointOfAnotherStep) {
  options_.max_steps = 4;
  BeElastic(0);
  ASSERT_TRUE(Train().ok());
  options_.resume = true;
  const auto result = Train();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("is of step 4, the run began at step 0"));
}

TEST_F(TrainerTest, AGenerationSavesWhatTheOneBeforeHasTrained) {
  BeElastic(20);
  RunHistory history;
  for (int64_t epoch = 0; epoch < options_.epochs; ++epoch) history.epochs.push_back({.epoch = epoch});
  side_values_ = ToValues(history);
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 0);
  EXPECT_TRUE(result->checkpoint_saved);
  EXPECT_THAT(SavedSteps(), ElementsAre(20));
}

TEST_F(TrainerTest, WhoWaitsForOthersAfterAnEvaluationDoesNotEvaluate) {
  BeElastic(0);
  options_.checkpoint_dir = "";
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  // After the last epoch the ranks also add up what is counted then alone.
  EXPECT_EQ(std::ssize(seen_.evaluation_phases), 2 * options_.epochs + 1);
  ASSERT_TRUE(result->quality.has_value());
  EXPECT_EQ(result->quality->accuracy, result->epochs.back().test_accuracy);
  EXPECT_EQ(result->quality->loss_mean, result->epochs.back().test_loss);
  EXPECT_GE(result->quality->top5, result->quality->accuracy);
  EXPECT_EQ(result->quality->confusion.size(), 100u);
  EXPECT_THAT(seen_.evaluation_phases, Each(WorkPhase::kExchange));
}

TEST_F(TrainerTest, AnEvaluationEndsWithItsGeneration) {
  BeElastic(0);
  options_.checkpoint_dir = "";
  segment_.is_over = [] { return true; };
  const auto result = Train();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  EXPECT_THAT(seen_.evaluation_phases, IsEmpty());
}

TEST_F(TrainerTest, AStepThatHasAnotherLossThanBeforeEndsTheRun) {
  BeElastic(0);
  options_.checkpoint_dir = "";
  segment_.check_loss = [](int64_t step, double) {
    return step < 2 ? absl::OkStatus() : absl::InternalError("another loss");
  };
  EXPECT_EQ(Train().status().message(), "another loss");
}

// Whoever starts the run again when it is not known to be over must not find it over without a record.
TEST_F(TrainerTest, TheResultIsReportedBeforeTheRanksPart) {
  std::string reported;
  report_ = [&](const TrainResult& result) {
    EXPECT_FALSE(seen_.has_finished);
    EXPECT_THAT(SavedSteps(), ElementsAre(20));
    reported = result.parameter_sha256;
    return absl::OkStatus();
  };
  options_.checkpoint_every_epochs = 5;
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(reported, result->parameter_sha256);
  EXPECT_TRUE(seen_.has_finished);
  std::filesystem::remove_all(options_.checkpoint_dir);
  seen_.has_finished = false;
  report_ = [](const TrainResult&) { return absl::ResourceExhaustedError("the disk is full"); };
  const auto unreported = Train();
  ASSERT_TRUE(unreported.ok()) << unreported.status();
  EXPECT_EQ(unreported->reported.message(), "the disk is full");
  EXPECT_TRUE(seen_.has_finished);
}

TEST_F(TrainerTest, SumsManyLossesInParts) {
  options_.dataset.synthetic_train_count = kSumValuesMax + 1;
  options_.global_batch = options_.epochs = 1;
  options_.record_losses = true;
  options_.checkpoint_dir = "";
  const auto result = Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::ssize(result->losses), kSumValuesMax + 1);
  EXPECT_EQ(static_cast<int64_t>(seen_.longest_sum), kSumValuesMax);
}

// More channels than one sum of the exchange may have values: the ranks' statistics differ until they are averaged.
TEST_F(TrainerTest, AveragesTheStatisticsOfManyChannelsInParts) {
  constexpr int64_t kChannels = kSumValuesMax + 1;
  const std::string text =
      absl::StrCat("layer { name: \"fc1\" dense { units: ", kChannels, " } }\n",
                   "layer { name: \"bn1\" batch_norm {} }\n", "layer { name: \"fc2\" dense { units: 10 } }\n");
  const LayerFile model = LayerFile::Parse(text, "wide.textproto").value();
  options_.max_steps = 1;
  options_.checkpoint_dir = "";
  const TrainAndTest data = LoadDataset(options_.dataset).value();
  InMemoryNetwork ring(2, /*seed=*/1);
  std::vector<std::vector<float>> first, second;
  std::thread other([&] { second = TrainInRing(model, data, 1, &ring); });
  first = TrainInRing(model, data, 0, &ring);
  other.join();
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(std::ssize(first[0]), kChannels);
  EXPECT_NE(first[0].back(), 0) << "the mean has moved";
  EXPECT_EQ(first, second);
}

// Each rank evaluates a part of the test set, and both must end and save at the same steps.
TEST_F(TrainerTest, RanksAgreeOnTheBestEpochAndOnTheQuality) {
  const LayerFile model = LayerFile::Load("logreg").value();
  options_.early_stop = 2;
  options_.save_best = true;
  const TrainAndTest data = LoadDataset(options_.dataset).value();
  const auto train = [&](double learning_rate, bool resume) {
    options_.schedule.base = learning_rate;
    options_.resume = resume;
    InMemoryNetwork ring(2, /*seed=*/1);
    std::vector<TrainResult> results(2);
    std::thread other([&] { TrainInRing(model, data, 1, &ring, &results[1]); });
    TrainInRing(model, data, 0, &ring, &results[0]);
    other.join();
    for (const TrainResult& result : results) {
      EXPECT_EQ(result.next_step, results[0].next_step);
      EXPECT_EQ(result.converged, results[0].converged);
      EXPECT_EQ(result.best.epoch, results[0].best.epoch);
      EXPECT_EQ(result.best.test_loss, results[0].best.test_loss);
      EXPECT_EQ(result.quality.has_value(), results[0].quality.has_value());
      if (!result.quality.has_value()) continue;
      EXPECT_EQ(result.quality->top5, results[0].quality->top5);
      EXPECT_EQ(result.quality->confusion, results[0].quality->confusion);
      const auto& confusion = result.quality->confusion;
      EXPECT_EQ(std::accumulate(confusion.begin(), confusion.end(), int64_t{0}), data.test.count);
    }
    return results[0];
  };
  const TrainResult still = train(0, false);
  EXPECT_TRUE(still.converged);
  EXPECT_EQ(still.next_step, 12);
  EXPECT_EQ(still.best_saved_step, 4);
  EXPECT_TRUE(std::filesystem::exists(options_.checkpoint_dir + "/best/step-000000004"));
  // The best epoch of a run before leaves no checkpoint behind.
  options_.early_stop = 0;
  const TrainResult learning = train(0.05, true);
  EXPECT_EQ(learning.next_step, 20);
  EXPECT_GT(learning.best_saved_step, 12);
  EXPECT_EQ(ListCheckpointFolders(options_.checkpoint_dir + "/best").size(), 1u);
}

// The time of a step is no reason for another bit, and both ranks must choose the same size.
TEST_F(TrainerTest, TriesSizesOfBucketsAndChangesNoBit) {
  const LayerFile model = LayerFile::Load("mlp").value();
  options_.checkpoint_dir = "";
  options_.epochs = 8;  // 32 steps
  const TrainAndTest data = LoadDataset(options_.dataset).value();
  const auto train = [&](std::optional<int64_t> asked_bytes) {
    options_.asked.bucket_bytes = asked_bytes;
    InMemoryNetwork ring(2, /*seed=*/1);
    std::vector<TrainResult> results(2);
    std::thread other([&] { TrainInRing(model, data, 1, &ring, &results[1]); });
    TrainInRing(model, data, 0, &ring, &results[0]);
    other.join();
    return results;
  };
  const std::vector<TrainResult> usual = train(0), tried = train(std::nullopt);
  EXPECT_EQ(usual[0].bucket_bytes, 1 << 20);
  EXPECT_TRUE(usual[0].tried_buckets.empty());
  EXPECT_EQ(tried[0].parameter_sha256, usual[0].parameter_sha256);
  EXPECT_EQ(tried[1].parameter_sha256, usual[0].parameter_sha256);
  EXPECT_EQ(tried[0].bucket_bytes, tried[1].bucket_bytes);
  ASSERT_EQ(tried[0].tried_buckets.size(), 3);
  const auto best = std::ranges::min_element(tried[0].tried_buckets, {}, &TriedBuckets::step_ms);
  EXPECT_EQ(best->bucket_bytes, tried[0].bucket_bytes);
  // A run with fewer steps has the usual size.
  options_.epochs = 7;
  const std::vector<TrainResult> brief = train(std::nullopt);
  EXPECT_EQ(brief[0].bucket_bytes, 1 << 20);
  EXPECT_TRUE(brief[0].tried_buckets.empty());
}

// The ranks part in good order: the training is over, and only its result is missing.
TEST_F(TrainerTest, ALastCheckpointThatIsNotWrittenIsReportedAndEndsNothing) {
  const auto result = [&] {
    const FullDisk disk(100);  // bytes: too few for any file of a checkpoint
    return Train();
  }();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(IsNotWritten(result->reported)) << result->reported;
  EXPECT_EQ(result->steps, 20);
  EXPECT_FALSE(result->checkpoint_saved);
  EXPECT_TRUE(seen_.has_finished);
}

// The disk is full, and another rank dies before that is reported.
TEST_F(TrainerTest, AFailedCheckpointAfterAFailedRunIsAWarning) {
  failing_step_ = 9;
  const auto result = [&] {
    const FullDisk disk(100);  // bytes: too few for any file of a checkpoint
    return Train();
  }();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 1 is gone"));
  EXPECT_THAT(SavedSteps(), ElementsAre());
}

TEST_F(TrainerTest, ParametersThatAreNotFiniteAreNoResult) {
  options_.checkpoint_dir = "";
  options_.epochs = 1;
  options_.max_steps = 1;
  options_.schedule.base = 3e38;  // the gradient is finite, the update is not
  options_.optimizer.momentum = 0;
  options_.optimizer.weight_decay = 1e30;
  const auto result = Train();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("after step 0 tensor fc1.weight has "));
}

// Training does not continue with such parameters: the next gradient is not finite either.
TEST_F(TrainerTest, ParametersThatAreNotFiniteEndTheNextStep) {
  options_.checkpoint_dir = "";
  options_.schedule.base = 3e38;
  options_.optimizer.momentum = 0;
  options_.optimizer.weight_decay = 1e30;
  const auto result = Train();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step 1: the gradient of tensor fc1."));
}

}  // namespace
}  // namespace starring
