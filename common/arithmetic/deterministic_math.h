// Powers and cosines in double from IEEE additions and multiplications alone: the same bits on every machine, where
// libm's last bit depends on the CPU and the library's version. Compile users with -ffp-contract=off.
#ifndef STARRING_COMMON_ARITHMETIC_DETERMINISTIC_MATH_H_
#define STARRING_COMMON_ARITHMETIC_DETERMINISTIC_MATH_H_

#include <cstdint>

namespace starring {

// base^exponent by squaring; relative error below 1e-15 * log2(exponent) for bases near 1.
// REQUIRES: exponent >= 0.
double IntegerPower(double base, int64_t exponent);

// cos(pi * x), error below 1e-15. REQUIRES: 0 <= x <= 1.
double CosinePi(double x);

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_DETERMINISTIC_MATH_H_
