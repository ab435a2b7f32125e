#include "server/elastic/record_file.h"

#include <string>

#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/elastic_state.pb.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr FileFormat kFormat = {.line = "starring-test-2\n", .first_version = "run name="};
constexpr size_t kHeadBytes = 12;

v1::SnapshotHead Head(int64_t step) {
  v1::SnapshotHead head;
  head.set_job("job");
  head.set_step(step);
  return head;
}

std::string Little(size_t number) {
  std::string bytes;
  for (int i = 0; i < 4; ++i, number >>= 8) bytes += static_cast<char>(number & 0xff);
  return bytes;
}

// As a writer with a defect frames `bytes`.
std::string Framed(size_t length, const std::string& bytes) {
  const std::string numbers = Little(length) + Little(Crc32c(bytes));
  return numbers + Little(Crc32c(numbers)) + bytes;
}

absl::StatusOr<bool> Take(absl::string_view bytes) {
  v1::SnapshotHead head;
  return TakeRecord(bytes, head);
}

TEST(RecordFileTest, RecordsAreTakenInTheirOrder) {
  const std::string bytes = ToRecord(Head(1)) + ToRecord(v1::SnapshotHead()) + ToRecord(Head(3));
  absl::string_view rest = bytes;
  v1::SnapshotHead head;
  for (const int64_t step : {1, 0, 3}) {
    EXPECT_EQ(TakeRecord(rest, head).value(), true);
    EXPECT_EQ(head.step(), step);
    EXPECT_EQ(head.job(), step == 0 ? "" : "job");
  }
  EXPECT_EQ(TakeRecord(rest, head).value(), false);
}

TEST(RecordFileTest, TheFormat) {
  const std::string message = Head(7).SerializeAsString();
  EXPECT_EQ(ToRecord(Head(7)), Framed(message.size(), message));
}

TEST(RecordFileTest, ARecordThatWasCutOffIsNone) {
  const std::string whole = ToRecord(Head(1));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_EQ(Take(whole.substr(0, size)).value(), false) << size;
  EXPECT_EQ(Take(std::string(100, '\0')).value(), false);
}

TEST(RecordFileTest, EachFlippedBitIsFound) {
  const std::string whole = ToRecord(Head(1));
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole + whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(std::string(Take(damaged).status().message()),
                HasSubstr(bit < 8 * kHeadBytes ? "checksum of its length is wrong" : "its checksum is wrong"));
    // Also in the last record: it was flushed, and others may know of it.
    EXPECT_TRUE(absl::IsDataLoss(Take(damaged.substr(0, whole.size())).status()));
  }
}

TEST(RecordFileTest, NoMemoryIsTakenForALengthThatNoRecordHas) {
  const std::string longest(kRecordBytesMax, 'a');
  EXPECT_THAT(std::string(Take(Framed(kRecordBytesMax, longest)).status().message()), HasSubstr("no message"));
  for (const size_t length : {kRecordBytesMax + 1, size_t{0xffffffff}}) {
    EXPECT_THAT(std::string(Take(Framed(length, longest + "a")).status().message()), HasSubstr("bytes, at most 65536"));
  }
  v1::SnapshotHead head;
  head.set_job(longest);
  EXPECT_DEATH(ToRecord(head), "kRecordBytesMax");
}

TEST(RecordFileTest, AMessageOfAnotherTypeIsAnError) {
  EXPECT_TRUE(absl::IsDataLoss(Take(Framed(3, "\xff\xff\xff")).status()));
}

TEST(RecordFileTest, AnotherVersionIsRefusedWithBothAndTheWayOut) {
  EXPECT_EQ(AfterFirstLine("starring-test-2\nrest", kFormat).value(), "rest");
  for (const char* const begin : {"starring-test-1", "starring-test-3\nrest", "starring-test-22\n", "run name=a"}) {
    const absl::Status status = AfterFirstLine(begin, kFormat).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string("it begins with \"") + std::string(begin).substr(0, 10)),
                      HasSubstr("writes \"starring-test-2\""), HasSubstr("start a new run with an empty --state_dir")));
  }
  for (const char* const damaged : {"starrinG-test-2\n", "starring-2\n", "run nam"}) {
    EXPECT_TRUE(absl::IsDataLoss(AfterFirstLine(damaged, kFormat).status())) << damaged;
  }
}

TEST(RecordFileTest, NothingFollowsAFirstLineThatWasCutOff) {
  for (size_t size = 0; size <= kFormat.line.size(); ++size) {
    EXPECT_EQ(AfterFirstLine(kFormat.line.substr(0, size), kFormat).value(), "") << size;
  }
  EXPECT_EQ(AfterFirstLine(std::string(100, '\0'), kFormat).value(), "");
}

}  // namespace
}  // namespace starring
