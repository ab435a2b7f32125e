#include "server/door/admission.h"

#include <string>
#include <vector>

#include "common/base/limits.h"
#include "common/wire/exchange_message.h"
#include "common/wire/request_proof.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.pb.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "0123456789abcdef0123456789abcdef";
constexpr char kPeer[] = "ipv4:10.0.0.1:1";
constexpr char kOtherPeer[] = "ipv4:10.0.0.9:9";

v1::JoinRequest Request() {
  v1::JoinRequest request;
  request.set_rank(3);
  request.set_worker_id(11);
  request.set_wire_version(kWireVersion);
  request.set_agreement("never parsed here");
  return request;
}

// A client at the other end of the connection `peer`, after its challenge.
RequestSigner Challenged(const Admission& admission, const std::string& key = kKey, const char* peer = kPeer) {
  RequestSigner signer(key);
  const absl::StatusOr<v1::ChallengeReply> reply = admission.Answer(signer.Ask(), peer);
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(signer.Take(*reply), absl::OkStatus());
  return signer;
}

v1::JoinRequest Signed(const Admission& admission) {
  v1::JoinRequest request = Request();
  Challenged(admission).Sign(kJoinMethod, &request);
  return request;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(AdmissionTest, TheProofDecides) {
  Admission admission(kKey, 0);
  const v1::JoinRequest good = Signed(admission);
  EXPECT_EQ(admission.Check(kJoinMethod, good, kPeer), absl::OkStatus());
  // A Join is repeated until it is answered.
  EXPECT_EQ(admission.Check(kJoinMethod, good, kPeer), absl::OkStatus());
  EXPECT_EQ(admission.DescribeRefusals(), "");
  v1::JoinRequest without = Request(), short_code = good, wrong = good, another_key = Request();
  short_code.mutable_proof()->set_code(good.proof().code().substr(1));
  wrong.mutable_proof()->mutable_code()->back() ^= 1;
  RequestSigner stranger = Challenged(Admission("x", 0), "x");
  stranger.Sign(kJoinMethod, &another_key);
  another_key.mutable_proof()->set_client_nonce(good.proof().client_nonce());
  another_key.mutable_proof()->set_server_nonce(good.proof().server_nonce());
  for (const v1::JoinRequest& request : {without, short_code, wrong, another_key}) {
    const absl::Status status = admission.Check(kJoinMethod, request, kPeer);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    // The message names the way out, and nothing about the job.
    EXPECT_THAT(Text(status), AllOf(HasSubstr("--job_secret"), Not(HasSubstr("rank 3"))));
  }
  EXPECT_EQ(admission.DescribeRefusals(),
            " (4 requests without the job's secret were refused, the last from ipv4:10.0.0.1:1)");
}

// A proof is worth nothing for another rank, method, connection, process of the server, or once more as the server's.
TEST(AdmissionTest, AProofIsForOneRequestOnOneConnection) {
  Admission admission(kKey, 0);
  const v1::JoinRequest good = Signed(admission);
  v1::JoinRequest other_rank = good, other_process = good, other_run = good, more = good;
  other_rank.set_rank(4);
  other_process.set_worker_id(12);
  other_run.set_run_id("another");
  more.set_lanes(2);
  for (const v1::JoinRequest& request : {other_rank, other_process, other_run, more}) {
    EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kJoinMethod, request, kPeer)));
  }
  EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kGetStatusMethod, good, kPeer)));
  EXPECT_TRUE(absl::IsUnavailable(admission.Check(kJoinMethod, good, kOtherPeer))) << "asks again";
  EXPECT_TRUE(absl::IsUnavailable(Admission(kKey, 0).Check(kJoinMethod, good, kPeer))) << "started again";
  v1::ChallengeRequest challenge;
  challenge.set_nonce(good.proof().client_nonce());
  v1::JoinRequest reflected = good;
  reflected.mutable_proof()->set_code(admission.Answer(challenge, kPeer)->code());
  EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kJoinMethod, reflected, kPeer)));
}

TEST(AdmissionTest, AChallengeNeedsANonceAndKeepsNothing) {
  const Admission admission(kKey, 0);
  v1::ChallengeRequest request;
  for (const size_t bytes : {size_t{0}, kProofNonceBytes - 1, kProofNonceBytes + 1}) {
    request.set_nonce(std::string(bytes, 'n'));
    EXPECT_TRUE(absl::IsInvalidArgument(admission.Answer(request, kPeer).status()));
  }
  request.set_nonce(std::string(kProofNonceBytes, 'n'));
  const v1::ChallengeReply one = *admission.Answer(request, kPeer), same = *admission.Answer(request, kPeer);
  EXPECT_EQ(one.SerializeAsString(), same.SerializeAsString());
  EXPECT_NE(one.nonce(), admission.Answer(request, kOtherPeer)->nonce());
  EXPECT_THAT(one.SerializeAsString(), Not(HasSubstr(kKey)));
}

TEST(AdmissionTest, StatusChecksAndReportsAreForMembersToo) {
  Admission admission(kKey, 0);
  v1::GetStatusRequest status;
  status.mutable_proof()->set_wire_version(kWireVersion);
  EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kGetStatusMethod, status, kPeer)));
  Challenged(admission).Sign(kGetStatusMethod, &status);
  EXPECT_EQ(admission.Check(kGetStatusMethod, status, kPeer), absl::OkStatus());
  v1::CheckRequest check;
  check.set_rank(1);
  Challenged(admission).Sign(kCheckMethod, &check);
  // The payload is timed, and its code would take time.
  check.set_payload(std::string(1 << 20, 'p'));
  EXPECT_EQ(admission.Check(kCheckMethod, check, kPeer), absl::OkStatus());
  check.set_rank(2);
  EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kCheckMethod, check, kPeer)));
  v1::MemberReport report;
  report.mutable_hello()->set_wire_version(kWireVersion);
  report.mutable_worker()->set_step(7);
  Challenged(admission).Sign(kAttendMethod, &report);
  EXPECT_EQ(admission.Check(kAttendMethod, report, kPeer), absl::OkStatus());
  report.mutable_worker()->set_leaves(true);
  EXPECT_TRUE(absl::IsUnauthenticated(admission.Check(kAttendMethod, report, kPeer)));
}

// Before the proof: a program of another version does not read "wrong secret".
TEST(AdmissionTest, AnotherWireVersionIsRefusedWithBoth) {
  for (Admission admission : {Admission(kKey, 0), Admission("", 0)}) {
    v1::JoinRequest request = Request();
    for (const int version : {0, kWireVersion - 1, kWireVersion + 1}) {
      request.set_wire_version(version);
      const absl::Status status = admission.Check(kJoinMethod, request, kPeer);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 3 speaks version " + std::to_string(version)),
                                      HasSubstr("this server version " + std::to_string(kWireVersion))));
    }
    EXPECT_EQ(admission.DescribeRefusals(), "");
  }
  // Its token, in a field that no message has any more.
  v1::GetStatusRequest old;
  ASSERT_TRUE(old.ParseFromString("\x0a\x20" + std::string(32, 't')));
  Admission admission(kKey, 0);
  EXPECT_THAT(Text(admission.Check(kGetStatusMethod, old, kPeer)),
              AllOf(HasSubstr("version 3 of the wire or an older one"),
                    HasSubstr("this server version " + std::to_string(kWireVersion))));
  EXPECT_TRUE(Admission("", 0).Check(kGetStatusMethod, old, kPeer).ok()) << "anybody may ask an open server";
}

TEST(AdmissionTest, WithoutASecretNoProofIsExpected) {
  Admission admission("", 0);
  EXPECT_TRUE(admission.Check(kJoinMethod, Request(), kPeer).ok());
  const absl::Status status = admission.Check(kJoinMethod, Signed(Admission(kKey, 0)), kPeer);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(Text(status), HasSubstr("was given no secret"));
}

TEST(AdmissionTest, ALongRequestIsRefusedBeforeItsCodeIsComputed) {
  Admission admission(kKey, 0);
  v1::JoinRequest request = Signed(admission);
  request.set_agreement(std::string(kProvedBytesMax, 'a'));
  const absl::Status status = admission.Check(kJoinMethod, request, kPeer);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(admission.DescribeRefusals(), "");
}

TEST(RefusalLogTest, ShowsAFewOfEachPeriodAndCountsTheRest) {
  std::vector<std::string> lines;
  RefusalLog log([&](const std::string& line) { lines.push_back(line); });
  const RefusalLog::Clock::time_point begin = RefusalLog::Clock::now();
  const std::chrono::milliseconds period(kLogPeriodMs);
  for (int64_t i = 0; i < kLogRefusalsMax + 5; ++i) log.Add("refused", begin);
  EXPECT_EQ(std::ssize(lines), kLogRefusalsMax);
  log.Add("still", begin + period - std::chrono::milliseconds(1));
  EXPECT_EQ(std::ssize(lines), kLogRefusalsMax);
  lines.clear();
  log.Add("again", begin + period);
  EXPECT_EQ(lines, (std::vector<std::string>{"6 more refusals are not shown", "again"}));
  lines.clear();
  log.Add("later", begin + 2 * period);
  EXPECT_EQ(lines, (std::vector<std::string>{"later"}));
}

}  // namespace
}  // namespace starring
