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
constexpr auto kForgotten = kStart + CheckBoard::kNoteLife + std::chrono::seconds(1);

constexpr auto kLife = CheckBoard::kNoteLife;

TEST(CheckBoardTest, KeepsNotesOfEachWorkerAndStage) {
  CheckBoard board;
  ASSERT_TRUE(board.Greet(3, 77, kStart).ok());
  ASSERT_TRUE(board.Put(3, 1, "card").ok());
  ASSERT_TRUE(board.Put(3, 2, "report").ok());
  ASSERT_TRUE(board.Put(3, 2, "better report").ok());
  ASSERT_NE(board.Get(3, 1), nullptr);
  EXPECT_EQ(*board.Get(3, 1), "card");
  EXPECT_EQ(*board.Get(3, 2), "better report");
  EXPECT_EQ(board.Get(3, 3), nullptr);
  EXPECT_EQ(board.Get(2, 1), nullptr);
  board.Leave(3);
  EXPECT_EQ(board.Get(3, 1), nullptr);
  EXPECT_EQ(board.worker_count(), 0);
}

// The notes of a check that was broken off must not be mixed with those of the next one.
TEST(CheckBoardTest, ForgetsWhoIsGone) {
  CheckBoard board;
  ASSERT_TRUE(board.Greet(0, 77, kStart).ok());
  ASSERT_TRUE(board.Put(0, 1, "old").ok());
  ASSERT_TRUE(board.Greet(1, 78, kStart).ok());
  ASSERT_TRUE(board.Put(1, 1, "old too").ok());
  ASSERT_TRUE(board.Greet(0, 99, kStart).ok());
  EXPECT_EQ(board.Get(0, 1), nullptr) << "another process of the same rank";
  ASSERT_TRUE(board.Greet(0, 99, kStart + kLife).ok());
  board.Forget(kStart + kLife + std::chrono::seconds(1));
  EXPECT_EQ(board.Get(1, 1), nullptr) << "not heard from for long";
  EXPECT_EQ(board.worker_count(), 1) << "heard from a second ago";
}

TEST(CheckBoardTest, HasLimits) {
  CheckBoard board;
  EXPECT_FALSE(board.Greet(-1, 1, kStart).ok());
  EXPECT_FALSE(board.Greet(kWorldSizeMax, 1, kStart).ok());
  ASSERT_TRUE(board.Greet(0, 1, kStart).ok());
  const std::string longest(kCheckNoteBytesMax, 'x');
  EXPECT_FALSE(board.Put(0, 1, longest + "x").ok());
  EXPECT_FALSE(board.Put(0, 0, "x").ok());
  EXPECT_FALSE(board.Put(0, kCheckStagesMax + 1, "x").ok());
  int64_t bytes = 0;
  absl::Status status;
  for (int rank = 0; rank < kWorldSizeMax && status.ok(); ++rank) {
    ASSERT_TRUE(board.Greet(rank, 1, kStart).ok());
    status = board.Put(rank, 1, longest);
    if (status.ok()) bytes += kCheckNoteBytesMax;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(bytes, kCheckBoardBytesMax);
  // A note that is replaced, or whose worker leaves, frees its bytes.
  ASSERT_TRUE(board.Put(0, 1, "short").ok());
  ASSERT_TRUE(board.Put(1, 2, std::string(1000, 'x')).ok());
  board.Leave(2);
  EXPECT_TRUE(board.Put(3, 2, longest).ok());
}

class CheckServiceTest : public testing::Test {
 protected:
  // A request of `rank`, whose process has its own number.
  static v1::CheckRequest From(int rank) {
    v1::CheckRequest request;
    request.set_rank(rank);
    request.set_worker_id(100 + rank);
    return request;
  }
  absl::StatusOr<v1::CheckReply> Answer(const v1::CheckRequest& request, const std::string& peer = "ipv4:10.0.0.1:1") {
    return service_.Answer(request, peer, kStart);
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

TEST_F(CheckServiceTest, HandsNotesOn) {
  v1::CheckRequest put = From(0);
  put.set_put_stage(1);
  put.set_put_text("card");
  ASSERT_TRUE(Answer(put).ok());
  v1::CheckRequest get = From(1);
  get.set_get_rank(0);
  get.set_get_stage(1);
  auto reply = Answer(get);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->found());
  EXPECT_EQ(reply->text(), "card");
  EXPECT_EQ(reply->note_count(), 2);
  v1::CheckRequest leave = From(0);
  leave.set_leave(true);
  ASSERT_TRUE(Answer(leave).ok());
  reply = Answer(get);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->found());
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
