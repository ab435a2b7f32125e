#include <cmath>

#include "common/arithmetic/optimizer.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(OptimizerMathTest, PowersAgreeWithLibm) {
  for (const double base : {0.5, 0.9, 0.999, 1.0, 2.0}) {
    for (const int64_t exponent : {0, 1, 2, 3, 7, 64, 1000}) {
      EXPECT_NEAR(IntegerPower(base, exponent) / std::pow(base, exponent), 1, 1e-13) << base << "^" << exponent;
    }
  }
  EXPECT_EQ(IntegerPower(0.0, 5), 0);
  EXPECT_EQ(IntegerPower(0.0, 0), 1);
  EXPECT_EQ(IntegerPower(2.0, 62), 0x1.0p62);
}

TEST(OptimizerMathTest, CosineAgreesWithLibm) {
  for (int i = 0; i <= 10000; ++i) {
    const double x = i / 10000.0;
    EXPECT_NEAR(CosinePi(x), std::cos(M_PI * x), 1e-15) << x;
  }
  EXPECT_EQ(CosinePi(0), 1);
  EXPECT_EQ(CosinePi(0.5), 0);
  EXPECT_EQ(CosinePi(1), -1);
}

}  // namespace
}  // namespace starring
