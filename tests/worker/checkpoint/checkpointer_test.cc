#include "worker/checkpoint/checkpointer.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/common/transport/in_memory_transport.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/model/layer_file.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;

// A ring of two ranks, each with a checkpointer, on a disk that is as slow as a test wants it.
class CheckpointerTest : public testing::Test {
 protected:
  struct Rank {
    WorkerOptions options;
    std::unique_ptr<Device> device;
    std::unique_ptr<Network> network;
    BucketMap buckets;
    std::vector<float> parameters;
    std::vector<std::string> warnings;
    std::unique_ptr<PeerExchange> exchange;
    std::unique_ptr<CheckpointWriter> writer;
    std::unique_ptr<Checkpointer> checkpointer;
  };

  void SetUp() override {
    dir_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
  }

  // Calls run(rank) on a thread of each rank, whose exchange has started.
  void RunRanks(const std::function<void(Rank*)>& run) {
    InMemoryNetwork network(kRanks, 1);
    std::vector<Rank> ranks(kRanks);
    std::vector<std::thread> threads;
    for (int i = 0; i < kRanks; ++i) {
      ranks[i].exchange = std::make_unique<PeerExchange>(network.CreateTransport(i), PeerExchange::Options{});
      threads.emplace_back([&, i, rank = &ranks[i]] {
        Prepare(i, rank);
        run(rank);
        rank->checkpointer.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    warnings_ = ranks[0].warnings;
    EXPECT_THAT(ranks[1].warnings, IsEmpty());
  }

  void Prepare(int number, Rank* rank) {
    rank->options.rank = number;
    rank->options.world_size = kRanks;
    rank->options.sync = Sync::kRing;
    rank->options.transport = TransportKind::kMpi;
    rank->options.optimizer.momentum = 0.9;
    rank->options.resume = resume_;
    if (!by_default_) rank->options.checkpoint_dir = dir_;
    rank->options.saves_by_default = by_default_;
    rank->options.elastic = is_elastic_;
    rank->options.exchange_deadline = exchange_deadline_;
    rank->options.checkpoint_deadline = checkpoint_deadline_;
    const NetworkOptions shape{.height = 4, .width = 4, .channels = 1, .outputs = 10, .batch_max = 1};
    rank->device = CreateCpuDevice({.threads = 1}).value();
    rank->network = Network::Create(LayerFile::Load("logreg").value(), shape, rank->device.get()).value();
    const Layout& layout = rank->network->layout();
    rank->buckets =
        BucketMap::Create({.element_count = layout.element_count(), .bucket_bytes = 1, .world_size = kRanks}).value();
    rank->parameters.assign(layout.element_count(), 1.0f);
    JobSpec job{.rank = number,
                .world_size = kRanks,
                .optimizer = rank->options.optimizer,
                .schedule = {},
                .layout = layout,
                .buckets = rank->buckets,
                .agreed_flags = {},
                .optimizer_state = {},
                .exchange_deadline = exchange_deadline_};
    CHECK_OK(rank->exchange->Start(job, rank->parameters));
    rank->writer = std::make_unique<CheckpointWriter>(checkpoint_deadline_, write_);
    rank->checkpointer = NewCheckpointer(rank);
  }

  std::unique_ptr<Checkpointer> NewCheckpointer(Rank* rank) {
    auto created = Checkpointer::Create(
        {.worker = &rank->options,
         .network = rank->network.get(),
         .buckets = &rank->buckets,
         .writer = rank->writer.get(),
         .end_step = end_step_,
         .gather_optimizer_state =
             [rank](std::span<const std::span<float>> state) { return rank->exchange->GatherOptimizerState(state); },
         .warn = [rank](const std::string& text) { rank->warnings.push_back(text); },
         .goes_on = is_elastic_,
         .leaves_writes = is_elastic_,
         .on_wait = on_wait_,
         .default_dir = dir_ + "/all/run"});
    CHECK_OK(created.status());
    return *std::move(created);
  }

  std::string dir_;
  bool resume_ = false;
  bool is_elastic_ = false;
  bool by_default_ = false;
  int64_t end_step_ = 1000;
  absl::Duration exchange_deadline_ = absl::Seconds(60);
  absl::Duration checkpoint_deadline_ = absl::Seconds(60);
  CheckpointWriter::WriteFunction write_ = WriteCheckpoint;
  std::function<void()> on_wait_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointerTest, APeriodicCheckpointIsSkippedWhileTheDiskIsSlow) {
  // Shared: a write may outlive the test's frame.
  const auto may_end = std::make_shared<std::latch>(1);
  write_ = [may_end](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    if (checkpoint.step == 10) may_end->wait();
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  RunRanks([&](Rank* rank) {
    const auto save = [&](int64_t step) {
      EXPECT_EQ(rank->checkpointer->SavePeriodic(step, rank->parameters, rank->exchange.get()), absl::OkStatus());
    };
    save(10);
    save(20);
    if (rank->options.rank == 0) may_end->count_down();
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
  });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("no checkpoint of step 20: that of step 10 is still being written")));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000010"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/step-000000020"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000030"));
}

TEST_F(CheckpointerTest, ByDefaultThereIsOneAtTheEnd) {
  by_default_ = true;
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
    const bool writes = rank->options.rank == 0;
    EXPECT_EQ(rank->checkpointer->is_saved(), writes);
    EXPECT_EQ(rank->checkpointer->dir(), writes ? dir_ + "/all/run" : "");
  });
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/all/run/step-000000030"));
}

TEST_F(CheckpointerTest, NoDiskEndsARunThatSavesByDefault) {
  by_default_ = true;
  const auto save = [](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SavePeriodic(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_FALSE(rank->checkpointer->is_saved());
  };
  write_ = [](const std::string&, const Layout&, const Checkpoint&) { return NotWrittenError("full"); };
  RunRanks(save);
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("step 10 was not written: full"), HasSubstr("step 30 was not written: full")));
  EXPECT_TRUE(std::filesystem::is_empty(dir_ + "/all")) << "the run's folder is left behind";
  std::filesystem::remove(dir_ + "/all");

  write_ = WriteCheckpoint;
  std::ofstream(dir_ + "/all") << "a file";
  RunRanks(save);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("nothing will be saved"), HasSubstr("--checkpoint_dir=none"))));

  std::filesystem::remove(dir_ + "/all");
  RunRanks([&](Rank* rank) {
    rank->parameters[0] = std::numeric_limits<float>::infinity();
    save(rank);
  });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("no checkpoint: "), HasSubstr("no checkpoint: ")));
}

// The others have trained for long when a worker that has just come becomes rank 0.
TEST_F(CheckpointerTest, AFolderThatCannotBeMadeEndsNoRunThatGoesOn) {
  dir_ += std::string(300, 'x');  // longer than a name may be
  is_elastic_ = true;
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SavePeriodic(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_FALSE(rank->checkpointer->is_saved());
    rank->writer->WaitFor(absl::Minutes(1));
  });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("warning: the checkpoint of step 10 was not written")));
}

// Whoever may become rank 0 learns it before the run does.
TEST_F(CheckpointerTest, AFolderThatCannotBeWrittenIsRefused) {
  WorkerOptions options;
  EXPECT_EQ(Checkpointer::CheckFolder(options), absl::OkStatus());
  options.checkpoint_dir = dir_ + "/made/on/the/way";
  EXPECT_EQ(Checkpointer::CheckFolder(options), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_empty(options.checkpoint_dir));
  const std::string file = dir_ + "/file";
  std::ofstream(file) << "no folder";
  for (const std::string& bad : {file, file + "/below", dir_ + "/" + std::string(300, 'x')}) {
    options.checkpoint_dir = bad;
    const absl::Status status = Checkpointer::CheckFolder(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("--checkpoint_dir"), HasSubstr("name a folder")));
  }
  if (geteuid() == 0) return;  // who may write everywhere
  std::filesystem::permissions(dir_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  options.checkpoint_dir = dir_;
  EXPECT_EQ(Checkpointer::CheckFolder(options).code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::permissions(dir_, std::filesystem::perms::owner_all);
}

TEST_F(CheckpointerTest, AGenerationLeavesAWriteToTheNext) {
  is_elastic_ = true;
  checkpoint_deadline_ = absl::Minutes(30);  // who waits for it exceeds this test's time
  const auto may_end = std::make_shared<std::latch>(1);
  write_ = [may_end](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    if (checkpoint.step == 10) may_end->wait();
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  RunRanks([&](Rank* rank) {
    const auto save = [&](int64_t step) {
      EXPECT_EQ(rank->checkpointer->SavePeriodic(step, rank->parameters, rank->exchange.get()), absl::OkStatus());
    };
    save(10);
    rank->checkpointer.reset();
    EXPECT_EQ(rank->writer->WaitFor(absl::ZeroDuration()), rank->options.rank != 0);
    rank->checkpointer = NewCheckpointer(rank);
    save(20);
    if (rank->options.rank == 0) may_end->count_down();
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
  });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("no checkpoint of step 20: that of step 10 is still being written")));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000010"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000030"));
}

TEST_F(CheckpointerTest, AGenerationSavesInTheDefaultFolderOfTheOneBefore) {
  is_elastic_ = true;
  by_default_ = true;
  RunRanks([&](Rank* rank) {
    const bool writes = rank->options.rank == 0;
    for (const int64_t step : {20, 30}) {
      rank->checkpointer.reset();
      rank->checkpointer = NewCheckpointer(rank);
      EXPECT_EQ(rank->checkpointer->dir(), "") << "a disk that hangs would stop each generation";
      EXPECT_EQ(rank->checkpointer->SaveFinal(step, rank->parameters, rank->exchange.get()), absl::OkStatus());
      EXPECT_EQ(rank->checkpointer->dir(), writes ? dir_ + "/all/run" : "");
      EXPECT_EQ(rank->checkpointer->is_saved(), writes);
    }
  });
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/all/run/step-000000030"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_ + "/all"), {}), 1);
}

TEST_F(CheckpointerTest, AllRanksWaitForTheLastOneLongerThanForAnyExchange) {
  exchange_deadline_ = absl::Seconds(3);
  write_ = [](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3500));  // a slow disk: longer than any exchange may take
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000030")) << "rank " << rank->options.rank;
    EXPECT_EQ(rank->checkpointer->is_saved(), rank->options.rank == 0);
  });
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointerTest, ADiskThatHangsIsLeftAtTheDeadlineByEveryRank) {
  checkpoint_deadline_ = absl::Milliseconds(300);
  const auto may_end = std::make_shared<std::latch>(1);
  const auto has_ended = std::make_shared<std::latch>(1);
  write_ = [may_end, has_ended](const std::string&, const Layout&, const Checkpoint&) {
    may_end->wait();
    has_ended->count_down();
    return absl::OkStatus();
  };
  std::atomic<int> waits = 0;
  on_wait_ = [&waits] { ++waits; };
  RunRanks([&](Rank* rank) {
    const absl::Status status = rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get());
    EXPECT_TRUE(IsNotWritten(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 has not written the checkpoint of step 30 into " + dir_));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--checkpoint_deadline_s"));
    rank->options.checkpoint_deadline = absl::Minutes(30);  // the end of the checkpointer does not wait again
  });
  EXPECT_GE(waits, 2) << "rank 0 shows that it is alive";
  EXPECT_THAT(warnings_, IsEmpty());
  may_end->count_down();
  has_ended->wait();
}

// The generation that would have written it was cut.
TEST_F(CheckpointerTest, OneThatWasDueAndIsNotThereIsOverdue) {
  const CheckpointSchedule schedule{.steps_per_epoch = 1000, .every_epochs = 1, .every_steps = 10};
  RunRanks([&](Rank* rank) {
    const bool is_writer = rank->options.rank == 0;
    EXPECT_FALSE(rank->checkpointer->IsOverdue(schedule, 9));
    EXPECT_EQ(rank->checkpointer->IsOverdue(schedule, 10), is_writer);
    EXPECT_EQ(rank->checkpointer->IsOverdue(schedule, 14), is_writer);
    EXPECT_EQ(rank->checkpointer->SaveFinal(12, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_FALSE(rank->checkpointer->IsOverdue(schedule, 19));
    EXPECT_EQ(rank->checkpointer->IsOverdue(schedule, 20), is_writer);
  });
}

TEST_F(CheckpointerTest, AFailedWriteIsAWarningUnlessItIsTheLast) {
  write_ = [](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    if (checkpoint.step > 10) return absl::ResourceExhaustedError("no space left");
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  RunRanks([&](Rank* rank) {
    const auto save = [&](int64_t step) {
      EXPECT_EQ(rank->checkpointer->SavePeriodic(step, rank->parameters, rank->exchange.get()), absl::OkStatus());
    };
    save(10);
    save(20);
    const absl::Status status = rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get());
    EXPECT_TRUE(IsNotWritten(status));
    EXPECT_FALSE(rank->checkpointer->is_saved());
    EXPECT_EQ(
        std::string(status.message()),
        rank->options.rank == 0
            ? "the checkpoint of step 30 was not written: no space left; the last complete one is " + dir_ +
                  "/step-000000010"
            : "rank 0 could not write the checkpoint of step 30 into " + dir_ + ", and its own last line says why");
  });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("warning: the checkpoint of step 20 was not written: no space left; "
                                               "the last complete one is " +
                                               dir_ + "/step-000000010")));
}

TEST_F(CheckpointerTest, WhereNoneIsCompleteNoneIsClaimed) {
  write_ = [](const std::string&, const Layout&, const Checkpoint&) {
    return absl::ResourceExhaustedError("no space left");
  };
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SavePeriodic(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_FALSE(rank->checkpointer->is_saved());
  });
  EXPECT_THAT(warnings_, ElementsAre("warning: the checkpoint of step 10 was not written: no space left; there is no "
                                     "complete one in " +
                                     dir_));
}

TEST_F(CheckpointerTest, TheLastOneIsTriedAgain) {
  const auto tries = std::make_shared<std::atomic<int>>(0);
  write_ = [tries](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    if (++*tries == 1) return absl::ResourceExhaustedError("no space left");
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SaveFinal(30, rank->parameters, rank->exchange.get()), absl::OkStatus());
    EXPECT_EQ(rank->checkpointer->is_saved(), rank->options.rank == 0);
  });
  EXPECT_EQ(*tries, 2);
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/step-000000030"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointerTest, WhatIsNotFiniteIsNotSaved) {
  RunRanks([&](Rank* rank) {
    rank->parameters[3] = std::numeric_limits<float>::infinity();
    const absl::Status status = rank->checkpointer->SavePeriodic(10, rank->parameters, rank->exchange.get());
    if (rank->options.rank != 0) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("after step 9 tensor fc1.weight has inf"));
  });
  EXPECT_FALSE(HasCheckpoint(dir_));
}

TEST_F(CheckpointerTest, StateThatIsNotFiniteIsNotSaved) {
  RunRanks([&](Rank* rank) {
    const std::vector<float> gradient(rank->parameters.size(), 3e38f);  // finite, unlike the sum of two
    for (int b = 0; b < rank->buckets.bucket_count(); ++b) {
      const ElementRange range = rank->buckets.bucket(b);
      rank->exchange->Submit(
          {.round = 0, .bucket = b, .gradient = std::span(gradient).subspan(range.begin, range.size())});
    }
    for (int b = 0; b < rank->buckets.bucket_count(); ++b) EXPECT_EQ(rank->exchange->Await(0, b), absl::OkStatus());
    rank->parameters.assign(rank->parameters.size(), 1.0f);  // as if the momentum alone had overflowed
    const absl::Status status = rank->checkpointer->SavePeriodic(1, rank->parameters, rank->exchange.get());
    if (rank->options.rank != 0) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr("after step 0 tensor fc1.weight.momentum_buffer has inf"));
  });
  EXPECT_FALSE(HasCheckpoint(dir_));
}

TEST_F(CheckpointerTest, RankZeroAloneReadsTheOptimizersState) {
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SaveFinal(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
  });
  resume_ = true;
  RunRanks([&](Rank* rank) {
    std::vector<std::vector<float>> state;
    const auto step = rank->checkpointer->Restore(rank->parameters, &state);
    EXPECT_EQ(step.value(), 10);
    EXPECT_EQ(state.size(), rank->options.rank == 0 ? 1 : 0);
    rank->warnings.clear();
  });
}

// The chunk's size is a function of the number of workers; a build with another function would change the bits.
TEST_F(CheckpointerTest, AnotherChunkIsRefusedUnlessTheNumberOfWorkersDiffers) {
  int64_t chunk_bytes = 64 << 10;
  int world_size = kRanks;
  write_ = [&](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    EXPECT_EQ(checkpoint.world_size, kRanks);
    EXPECT_EQ(checkpoint.chunk_bytes, 128 << 10);
    Checkpoint other = checkpoint;
    other.chunk_bytes = chunk_bytes;
    other.world_size = world_size;
    return WriteCheckpoint(dir, layout, other);
  };
  const auto restore_after_save = [&](const std::function<void(const absl::Status&)>& expect) {
    std::filesystem::remove_all(dir_);
    resume_ = false;
    RunRanks([&](Rank* rank) {
      EXPECT_EQ(rank->checkpointer->SaveFinal(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
    });
    resume_ = true;
    RunRanks([&](Rank* rank) {
      std::vector<std::vector<float>> state;
      expect(rank->checkpointer->Restore(rank->parameters, &state).status());
      rank->warnings.clear();
    });
  };
  restore_after_save([](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("was written with chunk_bytes 65536, this build adds in"));
  });
  world_size = 9;
  restore_after_save([](const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); });
  // A checkpoint of a build that did not record these values.
  chunk_bytes = world_size = 0;
  restore_after_save([](const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); });
}

TEST_F(CheckpointerTest, KeepsTheBucketsThatWereChosen) {
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->chosen_bucket_bytes(), 0);
    rank->checkpointer->set_chosen_bucket_bytes(4 << 20);
    EXPECT_EQ(rank->checkpointer->SaveFinal(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
  });
  resume_ = true;
  // A value that a flag gives now comes before the value that was chosen then.
  for (const bool tries : {false, true}) {
    RunRanks([&](Rank* rank) {
      if (tries) rank->options.asked.bucket_bytes = std::nullopt;
      std::vector<std::vector<float>> state;
      EXPECT_EQ(rank->checkpointer->Restore(rank->parameters, &state).value(), 10);
      EXPECT_EQ(rank->checkpointer->chosen_bucket_bytes(), tries ? 4 << 20 : 0);
      rank->warnings.clear();
    });
  }
}

// Before there was --sum_order, contributions were added as a chain.
TEST_F(CheckpointerTest, ACheckpointWithoutAFlagWasWrittenWithItsDefault) {
  write_ = [](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    Checkpoint older = checkpoint;
    EXPECT_EQ(older.config.erase("sum_order"), 1u);
    return WriteCheckpoint(dir, layout, older);
  };
  RunRanks([&](Rank* rank) {
    EXPECT_EQ(rank->checkpointer->SaveFinal(10, rank->parameters, rank->exchange.get()), absl::OkStatus());
  });
  resume_ = true;
  RunRanks([&](Rank* rank) {
    std::vector<std::vector<float>> state;
    rank->options.sum_order = SumOrder::kTree;
    const absl::Status refused = rank->checkpointer->Restore(rank->parameters, &state).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("flag --sum_order is tree, " + dir_));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("was written with chain: give the same value"));
    rank->options.sum_order = SumOrder::kChain;
    EXPECT_EQ(rank->checkpointer->Restore(rank->parameters, &state).value(), 10);
    rank->warnings.clear();
  });
}

TEST_F(CheckpointerTest, ARunThatEndsSaysSoInItsCheckpointAndOneThatIsStoppedDoesNot) {
  std::vector<bool> finished;
  write_ = [&finished](const std::string& dir, const Layout& layout, const Checkpoint& checkpoint) {
    finished.push_back(checkpoint.finished);
    return WriteCheckpoint(dir, layout, checkpoint);
  };
  end_step_ = 20;
  RunRanks([&](Rank* rank) {
    for (const int64_t step : {10, 20}) {
      EXPECT_EQ(rank->checkpointer->SaveFinal(step, rank->parameters, rank->exchange.get()), absl::OkStatus());
    }
  });
  EXPECT_THAT(finished, ElementsAre(false, true));
  resume_ = true;
  RunRanks([&](Rank* rank) {
    rank->options.optimizer.momentum = 0.5;
    std::vector<std::vector<float>> state;
    EXPECT_EQ(rank->checkpointer->Restore(rank->parameters, &state).value(), 20);
    EXPECT_THAT(rank->checkpointer->resume_notes(),
                ElementsAre("resumes with --momentum 0.5, " + dir_ + "/step-000000020 was written with 0.9",
                            HasSubstr("0 steps were left: " + dir_ + "/step-000000020 has 20 of 20 steps")));
    EXPECT_THAT(rank->warnings, Contains(HasSubstr("0 steps were left")));
    rank->warnings.clear();
  });
}

// The job before may end, with its last checkpoint, while this one waits for it.
TEST_F(CheckpointerTest, CheckpointsThatComeWhileAnotherJobHasTheFolderAreNotMixedUp) {
  FolderLock lock = FolderLock::Take(dir_, absl::ZeroDuration()).value();
  WorkerOptions options;
  options.checkpoint_dir = dir_;
  CheckpointWriter writer(absl::Seconds(60));
  absl::Status status;
  std::thread waiting([&] { status = Checkpointer::Create({.worker = &options, .writer = &writer}).status(); });
  // Whether it looks at the folder before or after this, it must not take it for its own.
  absl::SleepFor(absl::Milliseconds(100));
  std::filesystem::create_directories(dir_ + "/step-000000010");
  { const FolderLock released = std::move(lock); }
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it holds checkpoints of a run before"));
}

// Any worker of an elastic run may become its rank 0 later, and may have been given the folder of another job. An
// earlier rank 0 of the same run may sleep while it has the lock.
TEST_F(CheckpointerTest, ARunThatGoesOnTakesNoFolderOfAnotherJob) {
  WorkerOptions options;
  options.checkpoint_dir = dir_;
  options.elastic = true;
  options.coordinator = "host:7077";
  options.run_id = "mine/2";
  CheckpointWriter writer(absl::Seconds(60));
  const auto create = [&](bool goes_on) {
    return Checkpointer::Create({.worker = &options, .writer = &writer, .goes_on = goes_on});
  };
  const auto before = create(false).value();
  options.run_id = "mine/3";
  EXPECT_EQ(create(true).status(), absl::OkStatus());
  for (const std::string& other : {std::string("run \"other\""), std::string()}) {
    const std::string folder = absl::StrCat(dir_, "/", other.size());
    FolderLock lock = FolderLock::Take(folder, absl::ZeroDuration()).value();
    lock.Sign(other);
    options.checkpoint_dir = folder;
    const absl::Status status = create(true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder), HasSubstr(other.empty() ? "another job writes" : "another job, " + other)));
  }
  // A folder that has become unfit ends no part in the run: each write warns.
  options.checkpoint_dir = absl::StrCat(dir_, "/file");
  std::ofstream(options.checkpoint_dir) << "no folder";
  EXPECT_EQ(create(true).status(), absl::OkStatus());
}

}  // namespace
}  // namespace starring
