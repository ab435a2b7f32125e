#include "common/wire/request_proof.h"

#include <set>
#include <string>

#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKey(32, 'k');

// A server's answer to `request`.
v1::ChallengeReply Answer(const v1::ChallengeRequest& request, const std::string& key = kKey, int shard = 0) {
  v1::ChallengeReply reply;
  reply.set_shard(shard);
  reply.set_nonce(std::string(kProofNonceBytes, 's'));
  reply.set_code(ServerCode(key, request, reply));
  return reply;
}

TEST(RequestProofTest, AServerOfTheJobIsBelieved) {
  RequestSigner signer(kKey);
  EXPECT_TRUE(signer.needs_challenge());
  const v1::ChallengeRequest request = signer.Ask();
  EXPECT_EQ(request.nonce().size(), kProofNonceBytes);
  EXPECT_EQ(signer.Take(Answer(request, kKey, 3)), absl::OkStatus());
  EXPECT_FALSE(signer.needs_challenge());
  EXPECT_EQ(signer.shard(), 3);
}

TEST(RequestProofTest, AnyOtherServerIsNot) {
  RequestSigner signer(kKey);
  const v1::ChallengeReply recorded = Answer(signer.Ask());
  const v1::ChallengeRequest request = signer.Ask();
  v1::ChallengeReply other_shard = Answer(request), other_nonce = Answer(request), short_nonce = Answer(request);
  other_shard.set_shard(1);
  other_nonce.set_nonce(std::string(kProofNonceBytes, 't'));
  short_nonce.set_nonce("");
  for (const v1::ChallengeReply& reply :
       {Answer(request, "another"), recorded, other_shard, other_nonce, short_nonce}) {
    const absl::Status status = signer.Take(reply);
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--job_secret"));
    EXPECT_TRUE(signer.needs_challenge());
  }
  EXPECT_THAT(std::string(signer.Take({}).message()), HasSubstr("was given no secret"));
}

TEST(RequestProofTest, ACodeCoversAllOfTheRequestButThePayload) {
  RequestSigner signer(kKey);
  ASSERT_TRUE(signer.Take(Answer(signer.Ask())).ok());
  std::set<std::string> codes;
  v1::CheckRequest request;
  const auto sign = [&](const char* method) {
    signer.Sign(method, &request);
    codes.insert(request.proof().code());
  };
  sign(kCheckMethod);
  request.set_payload("p");
  sign(kCheckMethod);
  EXPECT_EQ(codes.size(), 1u);
  sign(kJoinMethod);
  request.set_rank(1);
  sign(kJoinMethod);
  request.set_put_text("t");
  sign(kJoinMethod);
  ASSERT_TRUE(signer.Take(Answer(signer.Ask())).ok());
  sign(kJoinMethod);
  EXPECT_EQ(codes.size(), 5u);
  EXPECT_EQ(request.proof().wire_version(), kWireVersion);
  EXPECT_THAT(request.SerializeAsString(), AllOf(Not(HasSubstr(kKey)), HasSubstr(request.proof().code())));
}

TEST(RequestProofTest, WithoutASecretRequestsCarryTheVersionAlone) {
  RequestSigner signer("");
  EXPECT_FALSE(signer.needs_challenge());
  v1::GetStatusRequest request;
  signer.Sign(kGetStatusMethod, &request);
  v1::RequestProof expected;
  expected.set_wire_version(kWireVersion);
  EXPECT_EQ(request.proof().SerializeAsString(), expected.SerializeAsString());
}

}  // namespace
}  // namespace starring
