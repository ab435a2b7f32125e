#include "server/door/check_service.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CheckService::Clock::time_point kStart{};
constexpr auto kForgotten = kStart + CheckService::kNoteLife + std::chrono::seconds(1);

class CheckServiceTest : public testing::Test {
 protected:
  // A request of `rank`, whose process has its own number.
  static v1::CheckRequest From(int rank) {
    v1::CheckRequest request;
    request.set_rank(rank);
    request.set_worker_id(100 + rank);
    return request;
  }
  absl::StatusOr<v1::CheckReply> Answer(const v1::CheckRequest& request, const std::string& peer = "ipv4:10.0.0.1:1",
                                        CheckService::Clock::time_point now = kStart) {
    return service_.Answer(request, peer, now);
  }
  absl::Status Put(int rank, int stage, const std::string& text) {
    v1::CheckRequest request = From(rank);
    request.set_put_stage(stage);
    request.set_put_text(text);
    return Answer(request).status();
  }
  // The note that `reader` finds; "none" if there is no such note.
  std::string Get(int reader, int rank, int stage) {
    v1::CheckRequest request = From(reader);
    request.set_get_rank(rank);
    request.set_get_stage(stage);
    const auto reply = Answer(request);
    return !reply.ok() ? reply.status().ToString() : reply->found() ? reply->text() : "none";
  }
  absl::Status Leave(int rank) {
    v1::CheckRequest request = From(rank);
    request.set_leave(true);
    return Answer(request).status();
  }

  std::vector<std::string> kept_;
  CheckService service_{
      {.shard = 2, .grpc_version = "1.2.3", .keep = [this](const std::string& peer) { kept_.push_back(peer); }}};
};

TEST_F(CheckServiceTest, TellsFactsAndTheTime) {
  v1::CheckRequest request;
  request.set_facts(true);
  const auto reply = Answer(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  v1::ProcessFacts facts;
  ASSERT_TRUE(facts.ParseFromString(reply->facts()));
  EXPECT_EQ(facts.role(), v1::ProcessFacts::SERVER);
  EXPECT_EQ(facts.number(), 2);
  EXPECT_EQ(facts.wire_version(), kWireVersion);
  const auto& grpc = facts.libraries(facts.libraries_size() - 1);
  EXPECT_EQ(absl::StrCat(grpc.name(), " ", grpc.version()), "gRPC 1.2.3");
  EXPECT_GT(reply->clock_us(), 0);
  EXPECT_THAT(kept_, IsEmpty()) << "a client that signs no note is not a worker";
}

TEST_F(CheckServiceTest, HandsOnNotesOfEachWorkerAndStage) {
  ASSERT_TRUE(Put(3, 1, "card").ok());
  ASSERT_TRUE(Put(3, 2, "report").ok());
  ASSERT_TRUE(Put(3, 2, "better report").ok());
  EXPECT_EQ(Get(0, 3, 1), "card");
  EXPECT_EQ(Get(0, 3, 2), "better report");
  EXPECT_EQ(Get(0, 3, 3), "none");
  EXPECT_EQ(Get(0, 3, 0), "none");
  EXPECT_EQ(Get(0, 2, 1), "none");
}

// Rank 0 may leave first: the others have still to read its verdict.
TEST_F(CheckServiceTest, NotesAreGoneWhenAllHaveLeft) {
  ASSERT_TRUE(Put(0, 1, "verdict").ok());
  ASSERT_TRUE(Put(1, 1, "card").ok());
  ASSERT_TRUE(Leave(0).ok());
  EXPECT_EQ(Get(1, 0, 1), "verdict");
  ASSERT_TRUE(Leave(1).ok());
  EXPECT_EQ(Get(2, 0, 1), "none");
  EXPECT_EQ(Get(2, 1, 1), "none");
}

// Another worker of the ended check has not left yet, so the board still has the verdict.
TEST_F(CheckServiceTest, AWorkerOfTheNextCheckReadsNoNoteOfTheLast) {
  ASSERT_TRUE(Put(0, 1, "verdict").ok());
  ASSERT_TRUE(Put(1, 1, "card").ok());
  ASSERT_TRUE(Leave(0).ok());
  EXPECT_EQ(Get(1, 0, 1), "verdict");
  v1::CheckRequest next = From(2);
  next.set_worker_id(98);
  next.set_get_rank(0);
  next.set_get_stage(1);
  EXPECT_FALSE(Answer(next, "peer", kStart + std::chrono::seconds(1))->found());
  EXPECT_EQ(Get(1, 0, 1), "verdict");
  // A question that was on its way when rank 0 left does not bring it back.
  ASSERT_TRUE(Answer(From(0), "peer").ok());
  ASSERT_TRUE(Leave(1).ok());
  next.set_leave(true);
  ASSERT_TRUE(Answer(next, "peer", kStart + std::chrono::seconds(1)).ok());
  EXPECT_EQ(Get(3, 1, 1), "none");
}

// The notes of a check that was broken off must not be mixed with those of the next one.
TEST_F(CheckServiceTest, ForgetsWorkersThatAreGone) {
  ASSERT_TRUE(Put(0, 1, "old").ok());
  ASSERT_TRUE(Put(1, 1, "old too").ok());
  v1::CheckRequest request = From(0);
  request.set_worker_id(99);
  ASSERT_TRUE(Answer(request, "peer", kStart + CheckService::kNoteLife).ok());
  EXPECT_EQ(Get(1, 0, 1), "none") << "another process of the same rank";
  request.set_put_stage(1);
  request.set_put_text("new");
  ASSERT_TRUE(Answer(request, "peer", kStart + CheckService::kNoteLife).ok());
  service_.Forget(kForgotten);
  EXPECT_EQ(Get(2, 1, 1), "none") << "not heard from for long";
  EXPECT_EQ(Get(2, 0, 1), "new") << "heard from a second ago";
}

TEST_F(CheckServiceTest, TheBoardHasLimits) {
  const std::string longest(kCheckNoteBytesMax, 'x');
  EXPECT_EQ(Put(-1, 1, "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(kWorldSizeMax, 1, "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(0, 1, longest + "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(0, -1, "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(0, kCheckStagesMax + 1, "x").code(), absl::StatusCode::kInvalidArgument);
  int64_t bytes = 0;
  absl::Status status;
  for (int rank = 0; rank < kWorldSizeMax && status.ok(); ++rank) {
    status = Put(rank, 1, longest);
    if (status.ok()) bytes += kCheckNoteBytesMax;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(bytes, kCheckBoardBytesMax);
  EXPECT_EQ(Get(0, 0, 1), longest) << "a note that is refused leaves the one before in place";
  // A note that is replaced frees its bytes.
  ASSERT_TRUE(Put(0, 1, "short").ok());
  EXPECT_TRUE(Put(1, 2, std::string(1000, 'x')).ok());
  EXPECT_FALSE(Put(2, 2, longest).ok());
}

TEST_F(CheckServiceTest, KeepsAConnectionOnceACheck) {
  ASSERT_TRUE(Answer(From(0), "a").ok());
  ASSERT_TRUE(Answer(From(0), "a").ok());
  ASSERT_TRUE(Answer(From(1), "b").ok());
  EXPECT_THAT(kept_, ElementsAre("a", "b"));
  service_.Forget(kStart);
  ASSERT_TRUE(Answer(From(0), "a").ok());
  EXPECT_THAT(kept_, SizeIs(2));
  // A later connection may have the same address and port.
  service_.Forget(kForgotten);
  ASSERT_TRUE(Answer(From(0), "a").ok());
  EXPECT_THAT(kept_, ElementsAre("a", "b", "a"));
}

TEST_F(CheckServiceTest, KeepsNoMoreThanTheLimitInAllChecks) {
  for (int i = 0; i <= kCheckConnectionsMax; ++i) {
    service_.Forget(kForgotten);
    ASSERT_TRUE(Answer(From(0), absl::StrCat(i)).ok());
  }
  EXPECT_THAT(kept_, SizeIs(kCheckConnectionsMax));
}

TEST_F(CheckServiceTest, RefusesWhatIsBeyondTheLimitsAndKeepsNoConnectionForIt) {
  v1::CheckRequest request = From(0);
  request.set_payload(std::string(kCheckPayloadBytesMax, 'x'));
  EXPECT_TRUE(Answer(request, "good").ok());
  request.mutable_payload()->push_back('x');
  EXPECT_EQ(Answer(request, "bad").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Answer(From(kWorldSizeMax), "bad").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(kept_, ElementsAre("good"));
}

TEST_F(CheckServiceTest, RefusesEveryRequestOnceTheJobHasBegun) {
  ASSERT_TRUE(Answer(From(0), "before").ok());
  service_.Close(3);
  for (const v1::CheckRequest& request : {From(0), v1::CheckRequest()}) {
    const absl::Status status = Answer(request, "after").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("shard 2 already trains with 3 workers"), HasSubstr("check before the job starts")));
  }
  EXPECT_THAT(kept_, ElementsAre("before"));
}

}  // namespace
}  // namespace starring
