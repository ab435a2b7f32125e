#include "server/elastic/member_report.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/base/error_origin.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void ExpectRefused(const absl::Status& status, const std::string& field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(status.message()), HasSubstr(field));
}

TEST(MemberReportTest, AShardsFieldsAreRead) {
  v1::MemberReport::Shard proto;
  proto.set_shard(1);
  proto.set_address("host:7");
  proto.set_prepared(3);
  for (const int64_t step : {20, 10, 20}) proto.add_held(step);
  for (const int64_t leaves : {80, -1, 80}) proto.add_counted(leaves);
  proto.add_durable(10);
  proto.set_generation(2);
  proto.set_trouble("why");
  proto.set_finished(true);
  proto.set_contributions_max(5);
  proto.set_workers_max(6);
  proto.add_unjoined(1);
  proto.add_late(0);
  proto.add_late(2);
  const ShardReport report = ReadShardReport(proto, 2).value();
  EXPECT_EQ(report.shard, 1);
  EXPECT_EQ(report.address, "host:7");
  EXPECT_EQ(report.prepared, 3);
  EXPECT_THAT(report.held, ElementsAre(10, 20));
  EXPECT_THAT(report.counted, ElementsAre(testing::Pair(20, 80)));
  EXPECT_THAT(report.durable, ElementsAre(10));
  EXPECT_EQ(report.generation, 2);
  EXPECT_EQ(report.trouble, "why");
  EXPECT_TRUE(report.finished);
  EXPECT_EQ(report.contributions_max, 5);
  EXPECT_EQ(report.workers_max, 6);
  EXPECT_THAT(report.unjoined, ElementsAre(1));
  EXPECT_THAT(report.late, ElementsAre(0, 2));
}

TEST(MemberReportTest, CountsOfOtherSnapshotsAreRefused) {
  v1::MemberReport::Shard proto;
  proto.add_held(10);
  for (int i = 0; i < 2; ++i) proto.add_counted(80);
  ExpectRefused(ReadShardReport(proto, 1).status(), "counts for 2 of 1 snapshots");
}

TEST(MemberReportTest, AWorkersFieldsAreRead) {
  v1::MemberReport::Worker proto;
  proto.set_generation(2);
  proto.set_ready(true);
  proto.set_trouble("why");
  proto.set_leaves(true);
  proto.set_step(17);
  proto.set_leaf_count(4);
  proto.set_computes(true);
  proto.set_seconds_per_leaf(0.5);
  proto.set_step_seconds(2);
  proto.set_trial_leaf_seconds(0.25);
  proto.set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  proto.set_failure_text("not finite");
  proto.set_origin(v1::MemberReport::Worker::SERVER);
  proto.set_origin_number(3);
  proto.set_reached(8);
  proto.set_unreached(9);
  proto.set_unreached_text("no way");
  const WorkerReport report = ReadWorkerReport(proto).value();
  EXPECT_EQ(report.generation, 2);
  EXPECT_TRUE(report.ready);
  EXPECT_EQ(report.trouble, "why");
  EXPECT_TRUE(report.leaves);
  EXPECT_EQ(report.step, 17);
  EXPECT_EQ(report.leaf_count, 4);
  EXPECT_TRUE(report.computes);
  EXPECT_EQ(report.seconds_per_leaf, 0.5);
  EXPECT_EQ(report.step_seconds, 2);
  EXPECT_EQ(report.trial_leaf_seconds, 0.25);
  EXPECT_EQ(report.failure, absl::InternalError("not finite"));
  EXPECT_EQ(report.origin, (ErrorOrigin{.kind = ErrorOrigin::Kind::kServer, .number = 3}));
  EXPECT_EQ(report.reached, 8);
  EXPECT_EQ(report.unreached, 9);
  EXPECT_EQ(report.unreached_text, "no way");
  const WorkerReport empty = ReadWorkerReport(v1::MemberReport::Worker()).value();
  EXPECT_TRUE(empty.failure.ok());
  EXPECT_EQ(empty.origin, ErrorOrigin());
}

TEST(MemberReportTest, NumbersOutOfRangeAreRefused) {
  for (const int number : {-1, 2}) {
    v1::MemberReport::Shard proto;
    proto.set_shard(number);
    ExpectRefused(ReadShardReport(proto, 2).status(), "shard");
  }
  for (const int64_t number : {int64_t{-1}, kStepMax + 1}) {
    v1::MemberReport::Shard shard;
    shard.set_prepared(number);
    ExpectRefused(ReadShardReport(shard, 1).status(), "prepared");
    shard.set_prepared(0);
    shard.add_held(number);
    ExpectRefused(ReadShardReport(shard, 1).status(), "held");
    v1::MemberReport::Worker worker;
    worker.set_step(number);
    ExpectRefused(ReadWorkerReport(worker).status(), "step");
  }
  for (const int rank : {-1, kWorldSizeMax}) {
    v1::MemberReport::Shard late;
    late.add_late(rank);
    ExpectRefused(ReadShardReport(late, 1).status(), "late");
    v1::MemberReport::Shard unjoined;
    unjoined.add_unjoined(rank);
    ExpectRefused(ReadShardReport(unjoined, 1).status(), "unjoined");
  }
  v1::MemberReport::Worker origin;
  origin.set_origin(static_cast<v1::MemberReport::Worker::Origin>(ErrorOrigin::kKindCount));
  ExpectRefused(ReadWorkerReport(origin).status(), "origin");
  v1::MemberReport::Worker worker;
  worker.set_failure_code(17);
  ExpectRefused(ReadWorkerReport(worker).status(), "failure_code");
  v1::MemberReport::Shard shard;
  shard.set_address(std::string(kMemberNameBytesMax + 1, 'x'));
  ExpectRefused(ReadShardReport(shard, 1).status(), "address");
}

TEST(MemberReportTest, TimesAreFiniteAndMeasured) {
  for (const double seconds : {-1.0, kInfinity, std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    v1::MemberReport::Worker worker;
    worker.set_seconds_per_leaf(seconds);
    ExpectRefused(ReadWorkerReport(worker).status(), "seconds_per_leaf");
    worker.set_seconds_per_leaf(1);
    worker.set_trial_leaf_seconds(seconds);
    ExpectRefused(ReadWorkerReport(worker).status(), "trial_leaf_seconds");
  }
  v1::MemberReport::Worker worker;
  worker.set_step_seconds(std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(ReadWorkerReport(worker).value().step_seconds, 0);
}

// Texts go to all members, in messages that must be UTF-8.
TEST(MemberReportTest, TextsAreCutBetweenCharacters) {
  const std::string before(kStatusTextBytesMax - 1, 'x');
  v1::MemberReport::Shard shard;
  shard.set_trouble(before + "\xc3\xa4 and more");
  EXPECT_EQ(ReadShardReport(shard, 1).value().trouble, before);
  v1::MemberReport::Worker worker;
  worker.set_trouble(before + "yz");
  EXPECT_EQ(ReadWorkerReport(worker).value().trouble, before + "y");
  worker.set_failure_code(1);
  worker.set_failure_text(before + "yz");
  EXPECT_EQ(ReadWorkerReport(worker).value().failure.message(), before + "y");
}

// A shard whose fellow cannot write has many; all have the oldest, and those that the fellow has in memory.
TEST(MemberReportTest, OfManySnapshotsTheOldestAndTheNewestCount) {
  v1::MemberReport::Shard proto;
  for (int64_t step = 1; step <= 10'000; ++step) proto.add_held(10 * step);
  const std::vector<int64_t> held = ReadShardReport(proto, 1).value().held;
  ASSERT_EQ(std::ssize(held), kSnapshotsReportedMax);
  EXPECT_EQ(held.front(), 10);
  EXPECT_EQ(held[1], 10 * (10'000 - kSnapshotsReportedMax + 2));
  EXPECT_EQ(held.back(), 100'000);
}

}  // namespace
}  // namespace starring
