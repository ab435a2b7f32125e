#include "worker/checkpoint/resume_check.h"

#include <map>
#include <string>

#include "common/arithmetic/reduction_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "ck/step-000000014";

// A run's options, and what its checkpoint has.
struct Job {
  WorkerOptions options;
  Facts facts = {{"model", "lenet5 with digest 01"},
                 {"data.train", "60000 images"},
                 {"data.test", "10000 images"},
                 {"arithmetic.libm", "ab"}};
};

Checkpoint Written(const Job& run) {
  return {.step = 14,
          .config = DecidingValues(run.options, run.facts),
          .world_size = run.options.world_size,
          .chunk_bytes = ChunkBytesFor(run.options.world_size)};
}

absl::StatusOr<std::vector<std::string>> Resume(const Checkpoint& checkpoint, const Job& run) {
  return CheckResume(checkpoint, kFolder, run.options, run.facts);
}

std::vector<std::string> Said(const Checkpoint& checkpoint, const Job& run) {
  const auto said = Resume(checkpoint, run);
  EXPECT_TRUE(said.ok()) << said.status();
  return said.value_or(std::vector<std::string>());
}

std::string Refusal(const Checkpoint& checkpoint, const Job& run) {
  const absl::Status status = Resume(checkpoint, run).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ResumeCheckTest, TheSameRunHasNothingToSay) { EXPECT_THAT(Said(Written(Job()), Job()), IsEmpty()); }

TEST(ResumeCheckTest, WhatMayChangeIsSaidWithBothValues) {
  Job run;
  run.options.optimizer.momentum = 0.5;
  EXPECT_THAT(Said(Written(Job()), run),
              ElementsAre("resumes with --momentum 0.5, ck/step-000000014 was written with 0.9"));
  Job rounded;
  rounded.options.optimizer.momentum = 0.9f;
  EXPECT_THAT(Said(Written(rounded), run),
              ElementsAre("resumes with --momentum 0.5, ck/step-000000014 was written with 0.9"));
  run = Job();
  run.options.schedule.base = 0.001;
  EXPECT_THAT(Said(Written(Job()), run), ElementsAre(HasSubstr("--learning_rate 0.001, ")));
  run = Job();
  run.options.threads = 2;
  EXPECT_THAT(Said(Written(Job()), run), ElementsAre(HasSubstr("--threads 2, ")));
  run = Job();
  run.facts[3].second = "cd";
  EXPECT_THAT(Said(Written(Job()), run),
              ElementsAre("resumes with arithmetic.libm cd, ck/step-000000014 was written with ab"));
  // A cosine that follows from --epochs ends elsewhere.
  run = Job();
  run.facts.emplace_back("total_steps", "21");
  Job before;
  before.facts.emplace_back("total_steps", "14");
  EXPECT_THAT(Said(Written(before), run),
              ElementsAre(HasSubstr("--total_steps 21, ck/step-000000014 was written with 14")));
}

TEST(ResumeCheckTest, WhatIsAnotherRunIsRefusedWithBothValues) {
  Job run;
  run.options.global_batch = 32;
  EXPECT_EQ(Refusal(Written(Job()), run),
            "flag --global_batch is 32, ck/step-000000014 was written with 64: give the same value, or train without "
            "--resume");
  run = Job();
  run.options.optimizer.kind = OptimizerKind::kAdamW;
  EXPECT_THAT(Refusal(Written(Job()), run),
              HasSubstr("flag --optimizer is adamw, ck/step-000000014 was written with sgd"));
  run = Job();
  run.facts[0].second = "a layer file with digest 02";
  EXPECT_THAT(Refusal(Written(Job()), run),
              HasSubstr("flag --model is a layer file with digest 02, ck/step-000000014 was written with lenet5 with "
                        "digest 01: give the same layer file, and data of as many classes"));
  run = Job();
  run.facts[1].second = "50000 images";
  EXPECT_THAT(Refusal(Written(Job()), run),
              HasSubstr("data.train is 50000 images, ck/step-000000014 was written with 60000 images: give the same "
                        "training data"));
}

// A checkpoint of a version without --clip_norm was not clipped.
TEST(ResumeCheckTest, AnotherClipNormIsRefused) {
  Job clipped;
  clipped.options.optimizer.clip_norm = 0.5;
  EXPECT_THAT(Said(Written(clipped), clipped), IsEmpty());
  EXPECT_THAT(Refusal(Written(clipped), Job()),
              HasSubstr("flag --clip_norm is 0, ck/step-000000014 was written with 0.5"));
  Checkpoint before = Written(Job());
  before.config.erase("clip_norm");
  EXPECT_THAT(Said(before, Job()), IsEmpty());
  EXPECT_THAT(Refusal(before, clipped), HasSubstr("flag --clip_norm is 0.5, ck/step-000000014 was written with 0"));
}

TEST(ResumeCheckTest, AVariableThatComesOrGoesIsSaid) {
  Job with;
  with.facts.emplace_back("environment.ONEDNN_MAX_CPU_ISA", "AVX2");
  EXPECT_THAT(Said(Written(Job()), with), ElementsAre("resumes with environment.ONEDNN_MAX_CPU_ISA AVX2, "
                                                      "ck/step-000000014 was written with none"));
  EXPECT_THAT(Said(Written(with), Job()), ElementsAre("resumes with environment.ONEDNN_MAX_CPU_ISA none, "
                                                      "ck/step-000000014 was written with AVX2"));
}

TEST(ResumeCheckTest, OtherWorkersAreSaidUnlessLeavesCutTheSums) {
  Job run;
  run.options.world_size = 2;
  EXPECT_THAT(Said(Written(Job()), run),
              ElementsAre(HasSubstr("--world_size 2, ck/step-000000014 was written with 1")));
  Job leaves = run, before;
  before.options.micro_batches = leaves.options.micro_batches = 4;
  EXPECT_THAT(Said(Written(before), leaves), IsEmpty());
  run = Job();
  run.options.sync = Sync::kMpi;
  run.options.transport = TransportKind::kMpi;
  EXPECT_THAT(Said(Written(Job()), run),
              ElementsAre(HasSubstr("sums.library MPI, ck/step-000000014 was written with Starring")));
  run.options.sync = Sync::kNccl;
  EXPECT_THAT(Said(Written(Job()), run),
              ElementsAre(HasSubstr("sums.library NCCL, ck/step-000000014 was written with Starring")));
  run.options.sync = Sync::kRing;
  EXPECT_THAT(Said(Written(Job()), run), IsEmpty());
  Checkpoint other_build = Written(Job());
  ++other_build.chunk_bytes;
  EXPECT_THAT(Refusal(other_build, Job()), HasSubstr("resume with the build that wrote it"));
}

// Version 0 kept six flags, and before that four.
TEST(ResumeCheckTest, AnOldCheckpointIsReadAndSaysWhatIsNotCompared) {
  Checkpoint old = Written(Job());
  old.version = 0;
  old.config = {{"augment", "none"}, {"dataset", "fashion-mnist"}, {"global_batch", "64"}, {"seed", "1"}};
  Job run;
  run.options.optimizer.kind = OptimizerKind::kAdamW;
  run.options.threads = 2;
  EXPECT_THAT(Said(old, run), ElementsAre(HasSubstr("ck/step-000000014 was written by a version that kept neither")));
  run.options.seed = 9;
  EXPECT_THAT(Refusal(old, run), HasSubstr("flag --seed is 9, "));
  run = Job();
  run.options.micro_batches = 4;
  EXPECT_THAT(Refusal(old, run), HasSubstr("flag --micro_batches is 4, ck/step-000000014 was written with 0"));
}

// Each flag that decides numbers is compared: a new one gets a trait, or is listed here.
TEST(ResumeCheckTest, EveryFlagThatTheRanksCompareHasARule) {
  const std::map<std::string, std::string> values = DecidingValues(WorkerOptions(), Job().facts);
  for (const FlagRow& row : WorkerFlags().rows) {
    if (!row.Has(kSameOnAllRanks) && !row.Has(kInJobSpec)) continue;
    const bool decides_nothing = row.topic == "job" || row.topic == "checkpoint" || row.topic == "output" ||
                                 row.name == "bucket_bytes" || row.name == "elastic" || row.name == "epochs" ||
                                 row.name == "max_steps" || row.name == "early_stop" || row.name == "cuda_aware_mpi" ||
                                 row.name == "gpu_waits";
    EXPECT_NE(values.contains(std::string(row.name)), decides_nothing) << "--" << row.name;
  }
}

}  // namespace
}  // namespace starring
