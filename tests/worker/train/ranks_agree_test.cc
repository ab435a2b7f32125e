#include "worker/train/ranks_agree.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/security/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

// The sums of a job whose ranks run in this process, one after another. In the first round each rank's part is kept. In
// the second, when all parts are known, each rank gets the sum, added in rank order as the exchanges do.
class RecordedSums : public GradientExchange {
 public:
  absl::Status Start(const JobSpec&, std::span<float>) override { return absl::OkStatus(); }
  void Submit(const Submission&) override {}
  absl::Status Await(int64_t, int) override { return absl::OkStatus(); }
  absl::Status Sum(SumPurpose purpose, std::span<double> values) override {
    std::vector<double>& sum = purpose == SumPurpose::kDigest ? digest_ : verdict_;
    if (sum.empty()) sum.resize(values.size());
    if (purpose == adding) {
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
    std::copy(sum.begin(), sum.end(), values.begin());
    return absl::OkStatus();
  }
  absl::Status GatherOptimizerState(std::span<const std::span<float>>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status Finish() override { return absl::OkStatus(); }
  ExchangeCounters counters() const override { return {}; }

  SumPurpose adding = SumPurpose::kDigest;

 private:
  std::vector<double> digest_, verdict_;
};

// The answers of all ranks.
std::vector<absl::Status> Check(const std::vector<std::string>& digests) {
  RecordedSums sums;
  const int world_size = static_cast<int>(digests.size());
  std::vector<absl::Status> answers(digests.size());
  const auto round = [&] {
    for (int rank = 0; rank < world_size; ++rank) {
      answers[rank] = CheckRanksAgree(digests[rank], rank, world_size, &sums);
    }
  };
  round();
  sums.adding = SumPurpose::kDigestVerdict;
  round();
  sums.adding = SumPurpose::kPixels;
  round();
  return answers;
}

TEST(RanksAgreeTest, EqualDigestsAgreeWhateverTheNumberOfRanks) {
  for (const int world_size : {1, 2, 33, 64, 1024}) {
    for (int i = 0; i < 20; ++i) {
      const std::string digest = Sha256Hex(std::as_bytes(std::span(&i, 1)));
      for (const absl::Status& answer : Check(std::vector<std::string>(world_size, digest))) {
        ASSERT_EQ(answer, absl::OkStatus()) << world_size << " ranks, digest " << digest;
      }
    }
  }
}

TEST(RanksAgreeTest, ARankThatDiffersInAnyDigitIsNamedOnEveryRank) {
  const std::string digest = Sha256Hex(std::string_view("parameters"));
  for (size_t digit = 0; digit < digest.size(); ++digit) {
    std::vector<std::string> digests(1024, digest);
    digests[700][digit] = digest[digit] == '0' ? '1' : '0';
    for (const absl::Status& answer : Check(digests)) {
      ASSERT_EQ(answer.code(), absl::StatusCode::kInternal);
      ASSERT_THAT(std::string(answer.message()), HasSubstr("rank 700 ends with other parameters than rank 0"));
    }
  }
  std::vector<std::string> digests(3, digest);
  digests[1][0] = digest[0] == 'f' ? '0' : 'f';
  digests[2][63] = digest[63] == 'f' ? '0' : 'f';
  EXPECT_THAT(std::string(Check(digests)[0].message()), HasSubstr("ranks 1, 2 end with"));
}

}  // namespace
}  // namespace starring
