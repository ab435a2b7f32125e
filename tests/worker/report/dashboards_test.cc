#include "worker/report/dashboards.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/tensorboard_event.pb.h"
#include "worker/exchange/local/local_exchange.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

// The checksum as TensorFlow's format of records masks it.
uint32_t MaskedCrc(absl::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8; }

// The records of the only file in `folder`, whose lengths and checksums are right.
std::vector<v1::TensorboardEvent> EventsIn(const std::string& folder) {
  std::vector<v1::TensorboardEvent> events;
  const std::filesystem::path path = std::filesystem::directory_iterator(folder)->path();
  EXPECT_THAT(path.filename(), HasSubstr("tfevents"));
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (size_t at = 0; at < text.size();) {
    uint64_t length = 0;
    uint32_t length_crc = 0, record_crc = 0;
    std::memcpy(&length, text.data() + at, 8);
    std::memcpy(&length_crc, text.data() + at + 8, 4);
    EXPECT_EQ(length_crc, MaskedCrc({text.data() + at, 8}));
    if (length > text.size() - at - 16) {
      ADD_FAILURE() << "a record of " << length << " bytes at " << at;
      break;
    }
    const absl::string_view record(text.data() + at + 12, length);
    std::memcpy(&record_crc, text.data() + at + 12 + length, 4);
    EXPECT_EQ(record_crc, MaskedCrc(record));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(record)));
    at += 16 + length;
  }
  return events;
}

std::map<std::string, float> ValuesOf(const v1::TensorboardEvent& event) {
  std::map<std::string, float> values;
  for (const auto& value : event.summary().value()) values[value.tag()] = value.simple_value();
  return values;
}

std::string Folder() {
  const std::string folder =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + "/new";
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(TensorboardTest, APointIsTheMeanOfTheStepsSinceTheLastOne) {
  const std::string folder = Folder();
  const auto board = Tensorboard::Create({.dir = folder, .steps_per_point = 2});
  ASSERT_TRUE(board.ok()) << board.status();
  const auto exchange = CreateLocalExchange();
  StepReport report{.finished = {}, .part_seconds = {}, .exchange = exchange.get()};
  report.part_seconds[static_cast<int>(StepPart::kExposedExchange)] = 0.25;
  report.part_seconds[static_cast<int>(StepPart::kForward)] = 0.75;
  (*board)->OnStep(report);  // nothing has finished yet: the first steps of a GPU
  const std::vector<FinishedStep> finished = {
      {.step = 7, .global_count = 40, .batch = 10, .loss = {.loss_sum = 5, .correct = 4}},
      {.step = 8, .global_count = 40, .batch = 30, .loss = {.loss_sum = 35, .correct = 16}}};
  report.finished = finished;
  (*board)->OnStep(report);
  (*board)->OnEpoch({.train_loss = 0.5, .test_loss = 0.25, .test_accuracy = 0.75, .samples_per_second = 99}, 9);

  const std::vector<v1::TensorboardEvent> events = EventsIn(folder);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 8);
  const std::map<std::string, float> step = {
      {"step/loss", 1}, {"step/accuracy", 0.5}, {"step/samples_per_second", 40}, {"step/exposed_exchange_ms", 250}};
  EXPECT_EQ(ValuesOf(events[1]), step);
  EXPECT_EQ(events[2].step(), 8) << "the last step of the epoch";
  const std::map<std::string, float> epoch = {{"epoch/train_loss", 0.5},
                                              {"epoch/test_loss", 0.25},
                                              {"epoch/test_accuracy", 0.75},
                                              {"epoch/samples_per_second", 99},
                                              {"epoch/exposed_exchange_ms", 250}};
  EXPECT_EQ(ValuesOf(events[2]), epoch);
}

TEST(TensorboardTest, RefusesAFolderThatItCannotWriteTo) {
  const auto board = Tensorboard::Create({.dir = "/dev/null/folder"});
  EXPECT_EQ(board.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(board.status().message()),
              HasSubstr("flag --tensorboard_dir cannot be \"/dev/null/folder\""));
}

}  // namespace
}  // namespace starring
