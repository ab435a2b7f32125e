#include "common/arithmetic/deterministic_math.h"

#include "common/check.h"

namespace starring {
namespace {

// 1 - y^2/2! + y^4/4! - ... and y - y^3/3! + ...: for |y| <= pi / 4 the first term left out is below 1e-17.
double CosineSeries(double y) {
  double sum = 1;
  for (int n = 16; n >= 2; n -= 2) sum = 1 - sum * (y * y) / (n * (n - 1));
  return sum;
}
double SineSeries(double y) {
  double sum = 1;
  for (int n = 17; n >= 3; n -= 2) sum = 1 - sum * (y * y) / (n * (n - 1));
  return y * sum;
}

}  // namespace

double IntegerPower(double base, int64_t exponent) {
  CHECK_GE(exponent, 0);
  double result = 1;
  for (double square = base; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return result;
}

double CosinePi(double x) {
  CHECK(0 <= x && x <= 1) << x;
  constexpr double kPi = 3.14159265358979323846;
  if (x <= 0.25) return CosineSeries(kPi * x);
  if (x <= 0.75) return -SineSeries(kPi * (x - 0.5));
  return -CosineSeries(kPi * (1 - x));
}

}  // namespace starring
