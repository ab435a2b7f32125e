#include "common/metrics/trace.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<Trace> MakeTrace(int number, const std::string& name = "trace.json") {
  auto trace = Trace::Create({.path = absl::StrCat(testing::TempDir(), "/", name), .number = number});
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

std::string ContentOf(int number) {
  std::ifstream file(absl::StrCat(testing::TempDir(), "/trace.worker-", number, ".json"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(TraceTest, TheNameOfTheProcessIsBeforeTheExtension) {
  const auto path = [](const char* given, Trace::Role role) {
    return Trace::PathOf({.path = given, .role = role, .number = 3});
  };
  EXPECT_EQ(path("trace.json", Trace::Role::kWorker), "trace.worker-3.json");
  EXPECT_EQ(path("out/trace.json", Trace::Role::kServer), "out/trace.server-3.json");
  EXPECT_EQ(path("out.d/trace", Trace::Role::kWorker), "out.d/trace.worker-3");
  EXPECT_EQ(path("out.d/.trace", Trace::Role::kWorker), "out.d/.trace.worker-3");
}

TEST(TraceTest, AFileThatCannotBeWrittenIsRefusedAtOnce) {
  const auto trace = Trace::Create({.path = "/proc/nowhere/trace.json"});
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("--trace"));
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("cannot make the folder /proc/nowhere: "));
}

TEST(TraceTest, ANullTrackTakesNothing) {
  EXPECT_EQ(AddTrack(nullptr, {.name = "compute"}), nullptr);
  const TraceSpan span(nullptr, nullptr, {.step = 1});
  AddFlight(nullptr, "exchange", 0, {});
}

TEST(TraceTest, AFlightEndsWhenItIsAdded) {
  const auto trace = MakeTrace(6);
  TraceTrack* const track = trace->AddTrack({.name = "lane", .peer = "shard"});
  AddFlight(track, "exchange", TraceNow() - 5'000'000'000, {.step = 4});
  ASSERT_TRUE(trace->Write().ok());
  const std::string json = ContentOf(6);
  const auto seconds_of = [&](const std::string& phase) {
    const size_t event = json.find(R"("ph":")" + phase + R"(","name":"exchange")");
    return event == std::string::npos ? 0.0 : std::stod(json.substr(json.find("\"ts\":", event) + 5)) / 1e6;
  };
  EXPECT_GT(seconds_of("b"), 0) << json;
  EXPECT_NEAR(seconds_of("e") - seconds_of("b"), 5, 1) << json;
}

TEST(TraceTest, WritesSpansAndFlights) {
  const auto trace = MakeTrace(5);
  TraceTrack* const track = trace->AddTrack({.name = "lane", .peer = "shard"});
  track->Add({.name = track->Intern("forward \"a\\b\""),
              .begin_ns = 1000007,
              .end_ns = 1002050,
              .labels = {.step = 4, .bucket = 0, .peer = 2}});
  track->Add({.name = "exchange",
              .kind = TraceEvent::Kind::kFlight,
              .begin_ns = 2000100,
              .end_ns = 3000000,
              .labels = {.step = 4}});
  ASSERT_TRUE(trace->Write().ok());
  const std::string json = ContentOf(5);
  EXPECT_THAT(json, HasSubstr(R"({"ph":"X","name":"forward \"a\\b\"","pid":6,"tid":1,"dur":2.043,"ts":1000.007,)"
                              R"("args":{"step":4,"bucket":0,"shard":2}})"));
  EXPECT_THAT(json, HasSubstr(R"("ph":"b","name":"exchange","pid":6,"tid":1,"cat":"flight","id":"6.1","ts":2000.100,)"
                              R"("args":{"step":4}})"));
  EXPECT_THAT(json, HasSubstr(R"("ph":"e","name":"exchange","pid":6,"tid":1,"cat":"flight","id":"6.1","ts":3000.000)"));
  EXPECT_THAT(json, HasSubstr(R"("name":"process_name","pid":6,"args":{"name":"worker 5"}})"));
  EXPECT_THAT(json, HasSubstr(R"("dropped_events":0})"));
}

TEST(TraceTest, ASpanLastsFromConstructionToDestruction) {
  const auto trace = MakeTrace(6);
  TraceTrack* const track = trace->AddTrack({.name = "compute"});
  const int64_t before = TraceNow();
  {
    const TraceSpan outer(track, "outer");
    const TraceSpan inner(track, "inner");
  }
  EXPECT_GE(TraceNow(), before);
  EXPECT_EQ(track->kept_count(), 2);
}

TEST(TraceTest, TheOldestEventsGoAndAreCounted) {
  const auto trace = MakeTrace(7);
  TraceTrack* const track = trace->AddTrack({.name = "compute", .events_max = 3});
  for (int i = 0; i < 5; ++i)
    track->Add({.name = "event", .begin_ns = 1000 * i, .end_ns = 1000 * i, .labels = {.step = i}});
  EXPECT_EQ(track->kept_count(), 3);
  ASSERT_TRUE(trace->Write().ok());
  const std::string json = ContentOf(7);
  EXPECT_THAT(json, Not(HasSubstr(R"("step":1})")));
  const size_t oldest = json.find(R"("step":2})");
  EXPECT_LT(oldest, json.find(R"("step":4})"));
  EXPECT_THAT(json, HasSubstr(R"("dropped_events":2})"));
}

// A ring that is full, one that is not, and one that has just become full.
TEST(TraceTest, ATrackThatMayKeepLessHasTheNewestEvents) {
  for (const int before : {2, 3, 4, 5, 13}) {
    const auto trace = MakeTrace(9);
    TraceTrack* const track = trace->AddTrack({.name = "compute", .events_max = 5});
    int step = 0;
    const auto add = [&] {
      track->Add({.name = "event", .begin_ns = 1000 * step, .end_ns = 1000 * step, .labels = {.step = step}});
      ++step;
    };
    while (step < before) add();
    track->KeepAtMost(3);
    EXPECT_EQ(track->kept_count(), std::min(before, 3));
    track->KeepAtMost(4);  // more than now
    for (int more = 0; more < 2; ++more) {
      ASSERT_TRUE(trace->Write().ok());
      const std::string json = ContentOf(9);
      size_t at = 0;
      for (int i = std::max(0, step - 3); i < step; ++i) {
        at = json.find(absl::StrCat("\"step\":", i, "}"), at);
        EXPECT_NE(at, std::string::npos) << before << ", " << i;
      }
      EXPECT_THAT(json, HasSubstr(absl::StrCat("\"dropped_events\":", std::max(0, step - 3), "}")));
      add();
    }
  }
}

TEST(TraceTest, ThreadsAddTracksAndEventsAtTheSameTime) {
  const auto trace = MakeTrace(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      TraceTrack* const track = trace->AddTrack({.name = "thread"});
      for (int i = 0; i < 1000; ++i) const TraceSpan span(track, "span", {.step = i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(trace->Write().ok());
  EXPECT_THAT(ContentOf(8), HasSubstr(R"("tid":4)"));
}

TEST(TraceTest, ATrackForgetsItsOldestEvents) {
  TraceTrack track({.name = "compute"});
  for (int i = 0; i < 131'072 + 5; ++i) track.Add({.name = "step"});
  EXPECT_EQ(track.kept_count(), 131'072);
}

}  // namespace
}  // namespace starring
