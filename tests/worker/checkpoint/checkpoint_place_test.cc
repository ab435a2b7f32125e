#include "worker/checkpoint/checkpoint_place.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }

  void AddCheckpoint(const std::string& name) const {
    fs::create_directories(dir_ + "/" + name);
    std::ofstream(dir_ + "/" + name + "/manifest.json") << R"({"step": "14", "version": 1})";
    std::ofstream(dir_ + "/" + name + "/model.safetensors") << "tensors";
  }

  static std::string Check(const std::string& dir, bool resume) {
    WorkerOptions options;
    options.checkpoint_dir = dir;
    options.resume = resume;
    const absl::Status status = CheckCheckpointPlace(options);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  std::string dir_;
};

TEST_F(CheckpointPlaceTest, TheDefaultIsNamedAfterTheRunAndMadeOnce) {
  WorkerOptions options;
  options.dataset.name = "fashion-mnist";
  options.model = "models/my net.v2.textproto";
  const absl::Time begin = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 7, 5, 9), absl::UTCTimeZone());
  EXPECT_EQ(DefaultCheckpointDir(options, begin), "starring-checkpoints/fashion-mnist-my_net_v2-20261129-070509");

  const std::string run = dir_ + "/all/run";
  EXPECT_EQ(MakeDefaultCheckpointDir(run).value(), run);
  EXPECT_EQ(MakeDefaultCheckpointDir(run).value(), run + "-2");
  std::ofstream(run + "/.lock") << "the run";
  EXPECT_EQ(MakeDefaultCheckpointDir(run, "the run").value(), run);  // its next generation
  EXPECT_EQ(MakeDefaultCheckpointDir(run, "another").value(), run + "-3");
  RemoveDefaultCheckpointDir(run + "-3");
  RemoveDefaultCheckpointDir(run);
  EXPECT_FALSE(fs::exists(run));
  AddCheckpoint("all/run-2/step-000000014");
  RemoveDefaultCheckpointDir(run + "-2");
  EXPECT_TRUE(fs::exists(run + "-2/step-000000014"));
  fs::remove_all(run + "-2/step-000000014");
  RemoveDefaultCheckpointDir(run + "-2");
  EXPECT_TRUE(fs::is_empty(dir_ + "/all"));  // another run may be about to use it
  fs::remove(dir_ + "/all");
  std::ofstream(dir_ + "/all") << "a file";
  EXPECT_THAT(MakeDefaultCheckpointDir(run).status().message(), HasSubstr("all/run: Not a directory"));
}

TEST_F(CheckpointPlaceTest, AnEmptyFolderOrNoneIsRight) {
  EXPECT_EQ(Check("", false), "");
  for (const bool resume : {false, true}) {
    EXPECT_EQ(Check(dir_, resume), "");
    EXPECT_EQ(Check(dir_ + "/none", resume), "");
  }
}

TEST_F(CheckpointPlaceTest, CheckpointsAreResumedOrRefused) {
  AddCheckpoint("step-000000014");
  AddCheckpoint("best");  // a copy that a person keeps
  EXPECT_EQ(Check(dir_, true), "");
  EXPECT_THAT(Check(dir_, false), HasSubstr("it holds checkpoints of a run before: add --resume"));
}

TEST_F(CheckpointPlaceTest, ACheckpointIsNoFolderOfCheckpoints) {
  AddCheckpoint("step-000000014");
  for (const std::string& path : {dir_ + "/step-000000014", dir_ + "/step-000000014/"}) {
    for (const bool resume : {false, true}) {
      EXPECT_THAT(Check(path, resume),
                  HasSubstr("it is itself a checkpoint: give its folder, --checkpoint_dir=" + dir_));
    }
  }
}

TEST_F(CheckpointPlaceTest, ACheckpointUnderAnotherNameIsNotPassedOver) {
  AddCheckpoint("best");
  EXPECT_THAT(Check(dir_ + "/best", true),
              HasSubstr("rename it to " + dir_ + "/step-000000014 and give its folder, --checkpoint_dir=" + dir_));
  EXPECT_THAT(Check(dir_, true), HasSubstr(dir_ + "/best is a checkpoint under another name: rename it to " + dir_ +
                                           "/step-000000014 to resume it, or drop --resume"));
  EXPECT_EQ(Check(dir_, false), "") << "nothing of it is overwritten";
}

TEST_F(CheckpointPlaceTest, AnothersManifestIsNone) {
  fs::create_directories(dir_ + "/site");
  std::ofstream(dir_ + "/site/manifest.json") << R"({"name": "a web page"})";
  EXPECT_EQ(Check(dir_, true), "");
  EXPECT_EQ(Check(dir_ + "/site", true), "");
}

}  // namespace
}  // namespace starring
