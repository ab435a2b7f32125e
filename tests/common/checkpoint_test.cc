#include "common/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Layout SmallLayout(int64_t units = 3) {
  return *Layout::Create(
      {{.name = "conv.weight", .dims = {2, 3, 3, 4}, .torch_axes = {0, 3, 1, 2}},
       {.name = "fc.weight", .dims = {units, 2, 2, 5}, .torch_axes = {0, 3, 1, 2}, .torch_shape = {units, 20}},
       {.name = "fc.bias", .dims = {units}}});
}

Checkpoint Filled(const Layout& layout, int64_t step) {
  Checkpoint checkpoint{
      .step = step, .epoch = step / 10, .config = {{"seed", "1"}}, .state_names = {"momentum_buffer"}};
  checkpoint.parameters.assign(layout.element_count(), 0.0f);
  float value = static_cast<float>(step);
  for (const Tensor& tensor : layout.tensors()) {
    for (int64_t e = tensor.range.begin; e < tensor.range.end; ++e) checkpoint.parameters[e] = value++;
  }
  checkpoint.state = {checkpoint.parameters};
  std::reverse(checkpoint.state[0].begin() + layout.tensors()[0].range.begin,
               checkpoint.state[0].begin() + layout.tensors()[0].range.end);
  checkpoint.buffers["bn.running_mean"] = {1, 2};
  checkpoint.owner_ranges = {{{0, 16}}, {{16, layout.element_count()}}};
  return checkpoint;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
  }

  absl::StatusOr<std::optional<FoundCheckpoint>> Read(const Layout& layout) {
    return ReadNewestCheckpoint(dir_, layout, {"momentum_buffer"}, {{"bn.running_mean", 2}});
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string dir_;
};

TEST_F(CheckpointTest, WhatIsWrittenIsRead) {
  const Layout layout = SmallLayout();
  EXPECT_FALSE(HasCheckpoint(dir_));
  EXPECT_FALSE(Read(layout)->has_value());
  const Checkpoint written = Filled(layout, 25);
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, written).ok());
  EXPECT_TRUE(HasCheckpoint(dir_));
  const auto found = Read(layout);
  ASSERT_TRUE(found.ok()) << found.status();
  const Checkpoint& read = (*found)->checkpoint;
  EXPECT_EQ(read.step, 25);
  EXPECT_EQ(read.epoch, 2);
  EXPECT_EQ(read.config, written.config);
  EXPECT_EQ(read.parameters, written.parameters);
  EXPECT_EQ(read.state, written.state);
  EXPECT_EQ(read.buffers, written.buffers);
}

TEST_F(CheckpointTest, TheNewestCountsAndOldOnesGo) {
  const Layout layout = SmallLayout();
  for (int64_t step : {10, 20, 30, 30}) ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, step)).ok());
  EXPECT_EQ((*Read(layout))->checkpoint.step, 30);
  EXPECT_THAT(Names(), testing::ElementsAre("step-000000020", "step-000000030"));
}

TEST_F(CheckpointTest, ADamagedFolderIsPassedOverWithAWarning) {
  const Layout layout = SmallLayout();
  for (const char* file : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    for (const bool truncate : {true, false}) {
      fs::remove_all(dir_);
      for (int64_t step : {10, 20}) ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, step)).ok());
      const std::string path = dir_ + "/step-000000020/" + file;
      if (truncate) {
        fs::resize_file(path, fs::file_size(path) - 2);
      } else {
        std::fstream damage(path, std::ios::in | std::ios::out | std::ios::binary);
        damage.seekp(static_cast<std::streamoff>(absl::EndsWith(file, "json") ? 0 : fs::file_size(path) - 2));
        damage.put('!');
      }
      const auto found = Read(layout);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ((*found)->checkpoint.step, 10) << file;
      ASSERT_EQ((*found)->warnings.size(), 1);
      EXPECT_THAT((*found)->warnings[0], HasSubstr(file));
    }
  }
}

TEST_F(CheckpointTest, AnotherModelIsRefusedWithBothShapes) {
  ASSERT_TRUE(WriteCheckpoint(dir_, SmallLayout(3), Filled(SmallLayout(3), 1)).ok());
  const auto found = Read(SmallLayout(7));
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("fc.weight has shape [3, 20] in the checkpoint, the model needs [7, 20]"));
  const auto other_optimizer = ReadNewestCheckpoint(dir_, SmallLayout(3), {"exp_avg"}, {});
  EXPECT_THAT(std::string(other_optimizer.status().message()), HasSubstr("conv.weight.exp_avg"));
}

TEST_F(CheckpointTest, AFullDiskKeepsTheLastCompleteOneAndLeavesNothing) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 10)).ok());
  signal(SIGXFSZ, SIG_IGN);  // the limit then shows as EFBIG, as a full disk does as ENOSPC
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 600;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteCheckpoint(dir_, layout, Filled(layout, 20));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Names(), testing::ElementsAre("step-000000010"));
  EXPECT_EQ((*Read(layout))->checkpoint.step, 10);
}

}  // namespace
}  // namespace starring
