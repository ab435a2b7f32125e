// A process that has taken the coordinator's port for a while gets nothing from a member, and ends no member.
#include "common/wire/member_link.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.pb.h"
#include "tests/common/wire/played_server.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKey(32, 'k');

bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// A member at `server`, which counts its reports.
struct Member {
  explicit Member(PlayedServer& server)
      : link({.coordinator = server.address(),
              .security = {.request_key = kKey},
              .report =
                  [this](v1::MemberReport* report, bool is_first) {
                    if (is_first) report->mutable_hello()->set_name("member");
                    report->mutable_worker()->set_step(1);
                    ++reports;
                  },
              .on_order = [](const v1::MemberOrder&) {},
              .on_refused = [this](const absl::Status&) { ++refusals; }}) {}

  std::atomic<int> reports = 0, refusals = 0;
  MemberLink link;
};

TEST(MemberLinkTest, AThiefOfTheCoordinatorsPortGetsNothing) {
  for (const auto proof :
       {PlayedServer::Proof::kWrong, PlayedServer::Proof::kNone, PlayedServer::Proof::kUnknownCall}) {
    PlayedServer server(proof, kKey);
    Member member(server);
    ASSERT_TRUE(Eventually([&] { return server.challenge_count() >= 3; })) << "tries again";
    EXPECT_EQ(member.reports, 0);
    EXPECT_EQ(server.heard(), "");
    EXPECT_EQ(member.refusals, 0);
    EXPECT_GT(member.link.disconnected_for(), std::chrono::steady_clock::duration::zero());
    EXPECT_THAT(member.link.trouble(),
                HasSubstr(proof == PlayedServer::Proof::kUnknownCall ? "one build" : "--job_secret"));
    // The coordinator is back.
    server.SetProof(PlayedServer::Proof::kGenuine);
    ASSERT_TRUE(Eventually([&] { return !server.heard().empty(); }));
    EXPECT_THAT(server.heard(), HasSubstr("member"));
    EXPECT_THAT(server.heard(), Not(HasSubstr(kKey.substr(0, 8))));
    // The server hears the member before the member knows that it is connected.
    const auto is_connected = [&] { return member.link.disconnected_for() == std::chrono::steady_clock::duration(); };
    EXPECT_TRUE(Eventually(is_connected));
  }
}

// Its proof, passed on by a process at the coordinator's address, does not make that process the coordinator.
TEST(MemberLinkTest, AnotherShardIsNotTakenForTheCoordinator) {
  PlayedServer server(PlayedServer::Proof::kGenuine, kKey, 1);
  Member member(server);
  ASSERT_TRUE(Eventually([&] { return server.challenge_count() >= 2; }));
  EXPECT_EQ(member.reports, 0);
  EXPECT_THAT(member.link.trouble(), HasSubstr("the server of shard 1"));
}

}  // namespace
}  // namespace starring
