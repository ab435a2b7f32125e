#include "common/wire/challenge.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/wire/exchange_message.h"
#include "common/wire/run_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/wire/played_server.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKey(32, 'k');
constexpr std::chrono::seconds kPatience(20);

absl::Status Challenged(PlayedServer& server, RequestSigner* signer) {
  const auto stub =
      v1::ParameterServer::NewStub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  return Challenge(*stub, &context, signer);
}

TEST(ChallengeTest, AServerProvesItselfOnce) {
  PlayedServer server(PlayedServer::Proof::kGenuine, kKey, 2);
  RequestSigner signer(kKey), open("");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Challenged(server, &signer), absl::OkStatus());
  EXPECT_EQ(signer.shard(), 2);
  EXPECT_EQ(Challenged(server, &open), absl::OkStatus());
  EXPECT_EQ(server.challenge_count(), 1);
}

TEST(ChallengeTest, AnyOtherIsNamedInASentence) {
  RequestSigner signer(kKey);
  PlayedServer server(PlayedServer::Proof::kWrong, kKey);
  EXPECT_THAT(std::string(Challenged(server, &signer).message()), HasSubstr("does not prove"));
  server.SetProof(PlayedServer::Proof::kNone);
  EXPECT_THAT(std::string(Challenged(server, &signer).message()), HasSubstr("was given no secret"));
  server.SetProof(PlayedServer::Proof::kUnknownCall);
  const absl::Status old = Challenged(server, &signer);
  EXPECT_TRUE(absl::IsInvalidArgument(old)) << old;
  EXPECT_THAT(std::string(old.message()), AllOf(HasSubstr("version 3 of the wire or an older one"),
                                                HasSubstr(absl::StrCat("this process version ", kWireVersion))));
}

// For people: a status asked at an address that another program has taken.
TEST(ChallengeTest, NothingOfARequestReachesAFalseServer) {
  PlayedServer server(PlayedServer::Proof::kWrong, kKey);
  RunClient client(server.address(), {.request_key = kKey});
  const absl::StatusOr<RunStatus> refused = client.Ask(kPatience);
  EXPECT_TRUE(absl::IsUnauthenticated(refused.status())) << refused.status();
  EXPECT_EQ(server.heard(), "");
  server.SetProof(PlayedServer::Proof::kGenuine);
  const absl::StatusOr<RunStatus> run = client.Ask(kPatience);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->generation, 5);
  EXPECT_THAT(server.heard(), AllOf(Not(HasSubstr(kKey)), Not(HasSubstr(kKey.substr(0, 8)))));
}

}  // namespace
}  // namespace starring
