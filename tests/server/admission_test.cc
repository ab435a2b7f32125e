#include "server/admission.h"

#include <string>
#include <vector>

#include "common/limits.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

v1::JoinRequest Request(const std::string& token) {
  v1::JoinRequest request;
  request.set_rank(3);
  request.set_wire_version(kWireVersion);
  request.set_token(token);
  request.set_agreement("never parsed here");
  return request;
}

TEST(AdmissionTest, TheTokenDecides) {
  Admission admission(kToken);
  EXPECT_TRUE(admission.Check(Request(kToken), "ipv4:10.0.0.1:1").ok());
  EXPECT_EQ(admission.DescribeRefusals(), "");
  std::string almost = kToken;
  almost.back() ^= 1;
  for (const std::string& token : {std::string(), std::string("x"), almost, kToken + std::string("0")}) {
    const absl::Status status = admission.Check(Request(token), "ipv4:10.0.0.9:9");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    // The message names the way out, and nothing about the job or the token.
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--job_secret"), Not(HasSubstr("rank")), Not(HasSubstr(kToken)), Not(HasSubstr("32"))));
  }
  EXPECT_EQ(admission.DescribeRefusals(),
            " (4 requests without the job's secret were refused, the last from ipv4:10.0.0.9:9)");
}

TEST(AdmissionTest, StatusIsForMembersToo) {
  Admission admission(kToken);
  v1::GetStatusRequest request;
  EXPECT_EQ(admission.Check(request, "").code(), absl::StatusCode::kUnauthenticated);
  request.set_token(kToken);
  EXPECT_TRUE(admission.Check(request, "").ok());
}

TEST(AdmissionTest, AnotherWireVersionIsRefusedWithBoth) {
  Admission admission(kToken);
  v1::JoinRequest request = Request(kToken);
  for (const int version : {0, kWireVersion + 1}) {
    request.set_wire_version(version);
    const absl::Status status = admission.Check(request, "");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 3 speaks version " + std::to_string(version)),
                                                     HasSubstr("this server version " + std::to_string(kWireVersion))));
  }
  // A stranger does not learn the version either.
  request.set_token("x");
  EXPECT_EQ(admission.Check(request, "").code(), absl::StatusCode::kUnauthenticated);
}

TEST(AdmissionTest, WithoutASecretNoTokenIsExpected) {
  Admission admission("");
  EXPECT_TRUE(admission.Check(Request(""), "").ok());
  const absl::Status status = admission.Check(Request(kToken), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was given no secret"));
}

TEST(AdmissionTest, ALongNameOfARunIsRefused) {
  Admission admission("");
  v1::JoinRequest request = Request("");
  request.set_run_id(std::string(kRunIdBytesMax, 'r'));
  EXPECT_TRUE(admission.Check(request, "").ok());
  request.set_run_id(std::string(kRunIdBytesMax + 1, 'r'));
  EXPECT_EQ(admission.Check(request, "").code(), absl::StatusCode::kInvalidArgument);
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
