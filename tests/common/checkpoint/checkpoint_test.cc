#include "common/checkpoint/checkpoint.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/checkpoint.pb.h"
#include "tests/common/checkpoint/folder_fixture.h"
#include "tests/common/full_disk.h"

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
  checkpoint.world_size = 6;
  checkpoint.chunk_bytes = 32768;
  checkpoint.bucket_bytes = 1 << 20;
  checkpoint.epoch = 2;
  checkpoint.best = {.epoch = 1, .test_loss = 0.25};
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

class CheckpointTest : public FolderTest {
 protected:
  absl::StatusOr<std::optional<FoundCheckpoint>> Read(const Layout& layout) {
    return ReadNewestCheckpoint(dir_, layout, {"momentum_buffer"}, {{"bn.running_mean", 2}});
  }
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
  EXPECT_EQ(read.world_size, 6);
  EXPECT_EQ(read.chunk_bytes, 32768);
  EXPECT_EQ(read.bucket_bytes, 1 << 20);
  EXPECT_EQ(read.best.epoch, 1);
  EXPECT_EQ(read.best.test_loss, 0.25);
  EXPECT_EQ(read.parameters, written.parameters);
  EXPECT_EQ(read.state, written.state);
  EXPECT_EQ(read.buffers, written.buffers);
}

TEST_F(CheckpointTest, AManifestTellsItsVersionAndWhetherTheRunHasEnded) {
  const Layout layout = SmallLayout();
  for (const bool finished : {false, true}) {
    Checkpoint written = Filled(layout, 25);
    written.finished = finished;
    ASSERT_TRUE(WriteCheckpoint(dir_, layout, written).ok());
    const auto found = Read(layout);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)->checkpoint.version, kCheckpointVersion);
    EXPECT_EQ((*found)->checkpoint.finished, finished);
  }
  EXPECT_EQ(StepOfCheckpoint(dir_ + "/step-000000025"), 25);
  EXPECT_EQ(StepOfCheckpoint(dir_), std::nullopt);
}

// A run that cannot go on is told why, and not which tensor differs.
TEST_F(CheckpointTest, WhatARunNeedsIsAskedBeforeTheTensors) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 25)).ok());
  const Layout other = Layout::Create({{.name = "other", .dims = {3}}}).value();
  const auto found = ReadNewestCheckpoint(dir_, other, {"momentum_buffer"}, {}, OptimizerState::kRead,
                                          [&](const Checkpoint& head, const std::string& folder) {
                                            EXPECT_EQ(head.config.at("seed"), "1");
                                            EXPECT_EQ(folder, dir_ + "/step-000000025");
                                            return absl::InvalidArgumentError("another seed");
                                          });
  EXPECT_EQ(found.status(), absl::InvalidArgumentError("another seed"));
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

void ExpectRefused(const absl::Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
}

TEST_F(CheckpointTest, AnotherModelIsRefusedWithBothShapes) {
  ASSERT_TRUE(WriteCheckpoint(dir_, SmallLayout(3), Filled(SmallLayout(3), 1)).ok());
  ExpectRefused(Read(SmallLayout(7)).status(),
                "tensor fc.weight has type and shape F32 [3, 20] in the checkpoint, the model needs F32 [7, 20]");
  const Layout fewer = *Layout::Create({{.name = "fc.bias", .dims = {3}}});
  ExpectRefused(Read(fewer).status(), "the checkpoint has tensor conv.weight, which neither the model");
  const Layout other = *Layout::Create({{.name = "fc.scale", .dims = {3}}});
  ExpectRefused(Read(other).status(), "the checkpoint has no tensor fc.scale");
}

TEST_F(CheckpointTest, AnotherOptimizerOrOtherBuffersAreRefused) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 1)).ok());
  const auto read = [&](const std::vector<std::string>& state, const std::map<std::string, int64_t>& buffers) {
    return ReadNewestCheckpoint(dir_, layout, state, buffers).status();
  };
  ExpectRefused(read({"exp_avg"}, {{"bn.running_mean", 2}}), "the checkpoint has no tensor conv.weight.exp_avg");
  ExpectRefused(read({}, {{"bn.running_mean", 2}}), "the checkpoint has tensor conv.weight.momentum_buffer");
  ExpectRefused(read({"momentum_buffer"}, {}), "the checkpoint has tensor bn.num_batches_tracked");
  ExpectRefused(read({"momentum_buffer"}, {{"bn.running_mean", 3}}),
                "F32 [2] in the checkpoint, the model needs F32 [3]");
  ExpectRefused(read({"momentum_buffer"}, {{"bn.num_batches_tracked", 1}}),
                "tensor bn.num_batches_tracked has type and shape I64 [] in the checkpoint, the model needs F32 [1]");
}

// A file has PyTorch's order, so a later program with another order in memory can read it.
TEST_F(CheckpointTest, OurMemoryOrderMayChange) {
  const Layout layout =
      *Layout::Create({{.name = "w", .dims = {2, 3, 5}, .torch_axes = {0, 2, 1}, .torch_shape = {2, 15}}});
  const Layout plain = *Layout::Create({{.name = "w", .dims = {2, 15}}});
  Checkpoint written;
  written.parameters.assign(layout.element_count(), 0.0f);
  std::iota(written.parameters.begin(), written.parameters.begin() + 30, 1.0f);
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, written).ok());
  const auto read = ReadNewestCheckpoint(dir_, plain, {}, {});
  ASSERT_TRUE(read.ok()) << read.status();
  std::vector<float> expected(plain.element_count(), 0.0f);
  ToTorchOrder(layout.tensors()[0].spec, std::span(written.parameters).first(30), std::span(expected).first(30));
  EXPECT_EQ((*read)->checkpoint.parameters, expected);
}

TEST_F(CheckpointTest, SameStateSameFiles) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_ + "/a", layout, Filled(layout, 7)).ok());
  ASSERT_TRUE(WriteCheckpoint(dir_ + "/b", layout, Filled(layout, 7)).ok());
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const auto content = [&](const std::string& run) {
      std::ifstream in(dir_ + "/" + run + "/step-000000007/" + file, std::ios::binary);
      return std::string{std::istreambuf_iterator<char>(in), {}};
    };
    EXPECT_EQ(content("a"), content("b")) << file;
  }
}

TEST_F(CheckpointTest, OneGivenFolderIsRead) {
  const Layout layout = SmallLayout();
  for (int64_t step : {10, 20}) ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, step)).ok());
  const auto read = ReadCheckpoint(dir_ + "/step-000000010", layout, {"momentum_buffer"}, {{"bn.running_mean", 2}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 10);
  EXPECT_EQ(ReadCheckpoint(dir_, layout, {}, {}).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, AllDamagedIsAnErrorAndNotABeginning) {
  const Layout layout = SmallLayout();
  for (int64_t step : {10, 20}) {
    ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, step)).ok());
    fs::remove(dir_ + "/step-0000000" + std::to_string(step) + "/model.safetensors");
  }
  const auto found = Read(layout);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("step-000000020/model.safetensors is missing"));
}

// A run that resumed from step 10 because 20 and 30 are damaged writes 12: that one must stay.
TEST_F(CheckpointTest, DamagedLaterFoldersDoNotPushOutWholeOnes) {
  const Layout layout = SmallLayout();
  for (int64_t step : {10, 20, 30}) fs::create_directories(dir_ + "/step-0000000" + std::to_string(step));
  for (int64_t step : {10, 12, 14}) ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, step)).ok());
  const auto found = Read(layout);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->checkpoint.step, 14);
  EXPECT_EQ((*found)->warnings.size(), 2);
  EXPECT_THAT(Names(), testing::ElementsAre("step-000000012", "step-000000014", "step-000000020", "step-000000030"));
}

TEST_F(CheckpointTest, AManifestCannotNameOtherFilesOrNegativeSteps) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 1)).ok());
  const std::string path = dir_ + "/step-000000001/manifest.json";
  std::ifstream in(path);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  const auto damage = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(path) << text;
    const absl::Status status = Read(layout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  EXPECT_THAT(damage("\"model.safetensors\"", "\"../x\""), HasSubstr("does not list model.safetensors"));
  EXPECT_THAT(damage("\"step\": \"1\"", "\"step\": \"-1\""), HasSubstr("step -1"));
  EXPECT_THAT(damage("\"size_bytes\": \"", "\"size_bytes\": \"99999999999999"),
              HasSubstr("bytes, expected 99999999999999"));
}

// A process that dies at any moment leaves a whole checkpoint, at least as new as the last one that it has reported.
TEST_F(CheckpointTest, AKilledWriterLeavesAWholeCheckpoint) {
  const Layout layout = SmallLayout();
  std::mt19937 random(1);
  int64_t told = 0;
  for (int round = 0; round < 20; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t step = told + 1;; ++step) {
        // Each step twice, because replacing a folder takes two renames, and the kill may come between them.
        if (!WriteCheckpoint(dir_, layout, Filled(layout, step)).ok()) _exit(1);
        if (!WriteCheckpoint(dir_, layout, Filled(layout, step)).ok()) _exit(1);
        if (write(pipe_ends[1], &step, sizeof step) != sizeof step) _exit(1);
      }
    }
    close(pipe_ends[1]);
    ASSERT_EQ(read(pipe_ends[0], &told, sizeof told), static_cast<ssize_t>(sizeof told)) << "the writer failed";
    usleep(random() % 4000);  // synchronises nothing: it makes the moment of the kill random
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(pipe_ends[0], &told, sizeof told) == sizeof told) {
    }
    close(pipe_ends[0]);
    const auto found = Read(layout);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->has_value());
    EXPECT_GE((*found)->checkpoint.step, told);
    EXPECT_THAT((*found)->warnings, testing::IsEmpty());
    EXPECT_EQ((*found)->checkpoint.parameters, Filled(layout, (*found)->checkpoint.step).parameters);
  }
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, told + 10)).ok());
  EXPECT_EQ(Names().size(), 2) << "the leftovers of killed writers were not removed";
}

// No memory is allocated for a size that only the file claims.
TEST_F(CheckpointTest, FilesOfAbsurdSizeAreDamaged) {
  const Layout layout = SmallLayout();
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 10)).ok());
    fs::resize_file(dir_ + "/step-000000010/" + name, uintmax_t{1} << 40);  // sparse
    const auto read = Read(layout);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(std::string(name) + " has 1099511627776 bytes"));
  }
}

// Writes `content` to the file `name`, with a manifest that has its size and sum, so that only its content can be
// refused.
void ReplaceFile(const std::string& folder, const std::string& name, const std::string& content) {
  const std::string manifest_path = folder + "/manifest.json";
  std::ifstream in(manifest_path);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  v1::CheckpointManifest manifest;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &manifest).ok());
  for (v1::CheckpointFile& file : *manifest.mutable_files()) {
    if (file.name() != name) continue;
    file.set_size_bytes(std::ssize(content));
    file.set_crc32(static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size())));
  }
  std::string changed;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(manifest, &changed).ok());
  std::ofstream(manifest_path) << changed;
  std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

// A header may have kTensorHeaderBytesMax for each of the model's tensors, but never more than
// kSafetensorsHeaderBytesMax.
TEST_F(CheckpointTest, AHeaderMayBeAsLongAsTheModelNeeds) {
  const Layout small = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, small, Filled(small, 10)).ok());
  const auto read = [this](const Layout& layout, int64_t header_bytes) {
    std::string file = std::string(sizeof(header_bytes), '\0') + "{}";
    file.resize(sizeof(header_bytes) + header_bytes, ' ');
    std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
    ReplaceFile(dir_ + "/step-000000010", "model.safetensors", file);
    return std::string(ReadNewestCheckpoint(dir_, layout, {}, {}).status().message());
  };
  const int64_t most = kTensorHeaderBytesMin + std::ssize(small.tensors()) * kTensorHeaderBytesMax;
  EXPECT_THAT(read(small, most), HasSubstr("the checkpoint has no tensor"));
  EXPECT_THAT(read(small, most + 1), HasSubstr(absl::StrCat("at most ", most, " are possible")));
  std::vector<TensorSpec> specs(kSafetensorsHeaderBytesMax / kTensorHeaderBytesMax);
  for (size_t i = 0; i < specs.size(); ++i) specs[i] = {.name = absl::StrCat(i), .dims = {1}};
  EXPECT_THAT(read(*Layout::Create(specs), kSafetensorsHeaderBytesMax + 1), HasSubstr("at most 67108864 are possible"));
}

TEST_F(CheckpointTest, AManifestHasALimit) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 10)).ok());
  const std::string path = dir_ + "/step-000000010/manifest.json";
  std::ofstream(path, std::ios::app) << std::string(kManifestBytesMax - static_cast<int64_t>(fs::file_size(path)), ' ');
  EXPECT_TRUE(Read(layout).ok());
  std::ofstream(path, std::ios::app) << ' ';
  EXPECT_THAT(std::string(Read(layout).status().message()), HasSubstr("has 16777217 bytes"));
}

TEST_F(CheckpointTest, MoreOwnerRangesThanAPersonReadsAreLeftOut) {
  const Layout layout = SmallLayout();
  for (const int64_t count : {kManifestOwnerRangesMax, kManifestOwnerRangesMax + 1}) {
    Checkpoint checkpoint = Filled(layout, 10);
    checkpoint.owner_ranges = {std::vector<ElementRange>(count, {0, 1})};
    ASSERT_TRUE(WriteCheckpoint(dir_, layout, checkpoint).ok());
    std::ifstream in(dir_ + "/step-000000010/manifest.json");
    const std::string json{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(absl::StrContains(json, "\"owner\""), count == kManifestOwnerRangesMax);
  }
}

TEST_F(CheckpointTest, StateThatIsOnlyCheckedIsNotRead) {
  const Layout layout = SmallLayout();
  const Checkpoint written = Filled(layout, 10);
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, written).ok());
  const auto check = [&](const std::vector<std::string>& state_names) {
    return ReadNewestCheckpoint(dir_, layout, state_names, {{"bn.running_mean", 2}}, OptimizerState::kCheckOnly);
  };
  const auto found = check({"momentum_buffer"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->checkpoint.parameters, written.parameters);
  EXPECT_EQ((*found)->checkpoint.buffers, written.buffers);
  EXPECT_TRUE((*found)->checkpoint.state.empty());
  EXPECT_EQ(check({"exp_avg"}).status().code(), absl::StatusCode::kInvalidArgument);
  std::fstream(dir_ + "/step-000000010/optimizer.safetensors", std::ios::in | std::ios::out | std::ios::binary)
      << "damage";
  EXPECT_EQ(check({"momentum_buffer"}).status().code(), absl::StatusCode::kDataLoss);
}

int64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:" && status >> word) return std::stoll(word) * 1024;
  }
  return -1;
}

// Three vectors of 16 MiB, each in 16 tensors of 1 MiB. A file is written tensor by tensor: a writer that held a whole
// vector would exceed the 8 MiB that are allowed.
TEST_F(CheckpointTest, WritingTakesNoMoreMemoryThanATensor) {
#if defined(STARRING_ASAN) || defined(STARRING_TSAN)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 16; ++i) {
    specs.push_back({.name = std::to_string(i), .dims = {512, 512}, .torch_axes = {1, 0}});
  }
  const Layout layout = *Layout::Create(specs);
  const pid_t child = fork();  // the peak of this process includes the tests before
  ASSERT_GE(child, 0);
  if (child == 0) {
    Checkpoint checkpoint = {.step = 1, .state_names = {"exp_avg", "exp_avg_sq"}};
    checkpoint.parameters.assign(layout.element_count(), 1.0f);
    checkpoint.state.assign(2, checkpoint.parameters);
    const int64_t before = PeakMemoryBytes();
    if (!WriteCheckpoint(dir_, layout, checkpoint).ok()) _exit(1);
    _exit(PeakMemoryBytes() - before < (int64_t{8} << 20) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

TEST_F(CheckpointTest, AFullDiskKeepsTheLastCompleteOneAndLeavesNothing) {
  const Layout layout = SmallLayout();
  ASSERT_TRUE(WriteCheckpoint(dir_, layout, Filled(layout, 10)).ok());
  const absl::Status status = [&] {
    const FullDisk disk(600);  // bytes, fewer than a file of this checkpoint has
    return WriteCheckpoint(dir_, layout, Filled(layout, 20));
  }();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Names(), testing::ElementsAre("step-000000010"));
  EXPECT_EQ((*Read(layout))->checkpoint.step, 10);
}

// A real full disk, in a file system of 320 KiB that only a child process sees.
TEST_F(CheckpointTest, ARealFullDiskKeepsTheLastCompleteOneAndLeavesNothing) {
  constexpr int kNoMount = 77;
  const Layout layout = *Layout::Create({{.name = "w", .dims = {20, 1000}}});
  Checkpoint checkpoint = {.parameters = std::vector<float>(layout.element_count(), 1.0f)};
  fs::create_directories(dir_);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(kNoMount);
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=320k") != 0) _exit(kNoMount);
    // A checkpoint takes 92 KB. Two are kept while a third is written. With the ballast, the fourth does not fit.
    for (checkpoint.step = 1; checkpoint.step <= 3; ++checkpoint.step) {
      if (!WriteCheckpoint(dir_, layout, checkpoint).ok()) _exit(1);
    }
    std::ofstream(dir_ + "/ballast") << std::string(100000, 'x');
    if (WriteCheckpoint(dir_, layout, checkpoint).code() != absl::StatusCode::kResourceExhausted) _exit(2);
    if (Names() != std::vector<std::string>{"ballast", "step-000000002", "step-000000003"}) _exit(3);
    const auto found = ReadNewestCheckpoint(dir_, layout, {}, {});
    if (!found.ok() || !found->has_value() || (*found)->checkpoint.step != 3) _exit(4);
    fs::remove(dir_ + "/ballast");
    _exit(WriteCheckpoint(dir_, layout, checkpoint).ok() ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount) {
    GTEST_SKIP() << "this process may not mount a file system: ENOSPC was not tested, EFBIG was";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace starring
