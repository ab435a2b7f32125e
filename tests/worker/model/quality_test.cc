#include "worker/model/quality.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 0, 1, ...
std::vector<int64_t> Numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

TEST(QualityTest, TopFiveAndConfusionCountTheFirstOfEqualOutputs) {
  QualityCounts counts(LossKind::kSoftmax, 7, 4);
  const std::vector<float> outputs = {0, 0, 0, 0, 0, 0, 0,   // class 4 is the fifth
                                      6, 5, 4, 3, 2, 1, 0,   // class 5 is the sixth
                                      1, 2, 3, 9, 5, 6, 7};  // class 3 is the first
  counts.Add(Numbers(3), outputs, std::vector<int32_t>{4, 5, 3});
  // A sample whose outputs have no order is counted nowhere.
  counts.Add(std::vector<int64_t>{3}, std::vector<float>{0, 0, NAN, 0, 0, 0, 0}, std::vector<int32_t>{0});
  const Quality quality = counts.Result(8, 1, 0);
  EXPECT_DOUBLE_EQ(quality.loss_mean, 2);
  EXPECT_DOUBLE_EQ(quality.accuracy, 1.0 / 4);
  EXPECT_DOUBLE_EQ(quality.top5, 2.0 / 4);
  EXPECT_EQ(quality.auc, 0);
  ASSERT_EQ(quality.confusion.size(), 49u);
  EXPECT_EQ(quality.confusion[4 * 7 + 0], 1);
  EXPECT_EQ(quality.confusion[5 * 7 + 0], 1);
  EXPECT_EQ(quality.confusion[3 * 7 + 3], 1);
  EXPECT_EQ(std::accumulate(quality.confusion.begin(), quality.confusion.end(), int64_t{0}), 3);
  EXPECT_EQ(ToString(quality), "loss 2.000000, accuracy 25.00 %, top 5 50.00 %");
}

TEST(QualityTest, TheMostConfusedComeFirst) {
  const Quality quality{.confusion = {9, 2, 0, 3, 9, 0, 2, 1, 9}};
  EXPECT_EQ(MostConfused(quality, {}), "most often 1 is taken for 0 (3), 0 is taken for 1 (2), 2 is taken for 0 (2)");
  EXPECT_EQ(MostConfused(quality, {"a", "b"}),
            "most often b is taken for a (3), a is taken for b (2), 2 is taken for a (2)");
  EXPECT_EQ(MostConfused({.confusion = {4, 0, 0, 4}}, {}), "");
  EXPECT_EQ(MostConfused({}, {}), "");
}

TEST(QualityTest, ManyClassesHaveNoConfusionMatrix) {
  const QualityCounts counts(LossKind::kSoftmax, kConfusionClassesMax + 1, 1);
  EXPECT_THAT(counts.Result(0, 0, 0).confusion, IsEmpty());
}

// The part of the pairs of a positive and a negative sample that are in order; equal scores count half.
double PairsInOrder(const std::vector<float>& scores, const std::vector<float>& bits, size_t first, size_t step) {
  double ordered = 0, pairs = 0;
  for (size_t i = first; i < scores.size(); i += step) {
    for (size_t j = first; j < scores.size(); j += step) {
      if (bits[i] != 1 || bits[j] != 0) continue;
      pairs += 1;
      ordered += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return ordered / pairs;
}

TEST(QualityTest, AucIsThePartOfPairsInOrder) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const float mean : {0.0f, 1000.0f}) {
    std::vector<float> scores, bits;
    for (int i = 0; i < 2000; ++i) {
      bits.push_back(random() % 3 == 0 ? 1.0f : 0.0f);
      // Some scores are equal.
      scores.push_back(mean + std::round(20 * (normal(random) + bits.back())) / 20);
    }
    QualityCounts one(LossKind::kBce, 1, 2000), two(LossKind::kBce, 2, 1000);
    one.Add(Numbers(2000), scores, bits);
    EXPECT_NEAR(one.Result(0, 0, 0).auc, PairsInOrder(scores, bits, 0, 1), 1e-12);
    two.Add(Numbers(1000), scores, bits);
    EXPECT_NEAR(two.Result(0, 0, 0).auc, (PairsInOrder(scores, bits, 0, 2) + PairsInOrder(scores, bits, 1, 2)) / 2,
                1e-12)
        << "the mean over two bits";
    // Two classes are scored by the difference of their outputs.
    QualityCounts classes(LossKind::kSoftmax, 2, 2000);
    std::vector<float> outputs;
    for (const float score : scores) outputs.insert(outputs.end(), {0, score});
    classes.Add(Numbers(2000), outputs, std::vector<int32_t>(bits.begin(), bits.end()));
    EXPECT_NEAR(classes.Result(0, 0, 0).auc, PairsInOrder(scores, bits, 0, 1), 1e-12);
  }
}

TEST(QualityTest, AucNeedsBothKindsAndTakesAnyScore) {
  QualityCounts counts(LossKind::kBce, 1, 3);
  counts.Add(Numbers(3), std::vector<float>{3e38f, -3e38f, 0}, std::vector<float>{1, 1, 1});
  EXPECT_EQ(counts.Result(0, 0, 0).auc, 0);
  counts.Add(std::vector<int64_t>{2}, std::vector<float>{0}, std::vector<float>{0});
  EXPECT_EQ(counts.Result(0, 0, 0).auc, 0.5);
  QualityCounts classes(LossKind::kSoftmax, 2, 2);
  classes.Add(Numbers(2), std::vector<float>{-3e38f, 3e38f, 3e38f, -3e38f}, std::vector<int32_t>{1, 0});
  EXPECT_EQ(classes.Result(0, 0, 0).auc, 1);
  QualityCounts many(LossKind::kBce, 2, kAucScoresMax);
  EXPECT_THAT(many.counts(), IsEmpty());
}

TEST(QualityTest, CountsOfRanksAddUp) {
  const std::vector<float> outputs = {0.5f, 0, 1, 2, 3, 1}, bits = {1, 0, 0, 1, 1, 0};
  QualityCounts all(LossKind::kBce, 1, 6), first(LossKind::kBce, 1, 6), second(LossKind::kBce, 1, 6);
  all.Add(Numbers(6), outputs, bits);
  first.Add(Numbers(2), std::span(outputs).first(2), std::span(bits).first(2));
  second.Add(std::vector<int64_t>{2, 3, 4, 5}, std::span(outputs).subspan(2), std::span(bits).subspan(2));
  for (size_t i = 0; i < first.counts().size(); ++i) first.counts()[i] += second.counts()[i];
  EXPECT_EQ(first.Result(0, 0, 0).auc, all.Result(0, 0, 0).auc);
  EXPECT_EQ(all.Result(0, 0, 0).auc, PairsInOrder(outputs, bits, 0, 1));
}

TEST(QualityTest, NumbersHaveRmseAndR2) {
  const std::vector<float> targets = {1, 10, 3, 30, 5, 50};
  // The columns' variances are 8/3 and 800/3.
  EXPECT_DOUBLE_EQ(MeanVariance(targets, 2), 404.0 / 3);
  EXPECT_EQ(MeanVariance({}, 2), 0);
  const QualityCounts counts(LossKind::kMse, 2, 3);
  const Quality quality = counts.Result(12, 0, MeanVariance(targets, 2));
  EXPECT_DOUBLE_EQ(quality.rmse, 2);
  EXPECT_DOUBLE_EQ(quality.r2, 1 - 12.0 / 404);
  EXPECT_EQ(quality.accuracy, 0);
  EXPECT_EQ(counts.Result(12, 0, 0).r2, 0);
  EXPECT_EQ(ToString(quality), "loss 4.000000, RMSE 2, R2 0.9703");
}

}  // namespace
}  // namespace starring
