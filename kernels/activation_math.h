// The functions of an activation layer (ActivationSpec in kernels/device.h) and their slopes, for one number. Only +,
// -, *, / and integer operations compute them, each rounded once and in the order written: the CPU's loops for every
// instruction set and the GPU's kernels give the same bits. libm's exp and erf would not.
//
// Compiled without contraction to fused multiply-add (kernels/cpu/BUILD, third_party/cuda/cuda.bzl).
//
// Thread safety: pure functions, for host and device code.
#ifndef STARRING_KERNELS_ACTIVATION_MATH_H_
#define STARRING_KERNELS_ACTIVATION_MATH_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define STARRING_ACTIVATION __host__ __device__ __forceinline__
#else
// A loop's clone inlines them, so that they run on its instruction set.
#define STARRING_ACTIVATION [[gnu::always_inline]] inline
#endif

namespace starring {

// The parameter of kLeakyRelu is its slope below 0, that of kScale the factor. The others have none.
enum class ActivationFunction { kRelu6, kSigmoid, kTanh, kGelu, kGeluTanh, kSilu, kLeakyRelu, kScale };

// Whether the slope follows from x. Otherwise it follows from y, or is constant, so that y may be where x is.
constexpr bool BackwardReadsInput(ActivationFunction function) {
  return function == ActivationFunction::kGelu || function == ActivationFunction::kGeluTanh ||
         function == ActivationFunction::kSilu;
}

namespace activation {

// e^x for x <= 0, within 2e-7 of it; 0 below -87, where the result would lose digits. A NaN stays a NaN. Not e^-87:
// its product with a large x would be far from 0.
STARRING_ACTIVATION float ExpOfNegative(float x) {
  const float a = x < -87.0f ? -87.0f : x;
  // The sum has no binary places left: it is rounded to an integer, which is in its lowest bits.
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23
  const float shifted = a * 1.44269504f + kRounds;
  const float n = shifted - kRounds;
  // a - n * log(2), in two parts. The first has ten binary places, so that its product is exact.
  const float r = (a - n * 0.693359375f) - n * -2.12194440e-4f;
  // (e^r - 1 - r) / r^2 for |r| <= log(2) / 2, fitted for the smallest largest error, 3e-9.
  const float p = (((1.39506e-3f * r + 8.368954e-3f) * r + 4.1666206e-2f) * r + 0.16666518f) * r + 0.5f;
  const float power = 1.0f + (r + r * r * p);
  uint32_t bits = 0;
  memcpy(&bits, &shifted, sizeof(bits));
  // 2^n: the exponent is the integer, less that of kRounds' bits, and 127.
  bits = (bits - 0x4b400000u + 127u) << 23;
  float scale = 0;
  memcpy(&scale, &bits, sizeof(scale));
  return x < -87.0f ? 0.0f : power * scale;
}

STARRING_ACTIVATION float Magnitude(float x) { return x < 0.0f ? -x : x; }

// 1 / (1 + e^-x).
STARRING_ACTIVATION float Sigmoid(float x) {
  const float e = ExpOfNegative(-Magnitude(x));
  const float of_positive = 1.0f / (1.0f + e);
  return x < 0.0f ? e * of_positive : of_positive;
}

STARRING_ACTIVATION float Tanh(float x) {
  const float magnitude = Magnitude(x);
  const float e = ExpOfNegative(-2.0f * magnitude);
  const float large = (1.0f - e) / (1.0f + e);
  // Near 0 the difference above has few digits. (tanh(x) / x - 1) / x^2 for x^2 <= 0.42, fitted as above: 6e-9.
  const float z = x * x;
  const float p = (((-5.5286246e-3f * z + 2.0483306e-2f) * z - 5.3692963e-2f) * z + 0.13330899f) * z - 0.33333263f;
  const float small = x + x * z * p;
  const float signed_large = x < 0.0f ? -large : large;
  return magnitude < 0.625f ? small : signed_large;
}

// at_limit + rest, where `spread` is a factor of the rest. Far from 0 the spread is 0 and another factor may be
// infinite, whose product would be a NaN.
STARRING_ACTIVATION float WithRest(float at_limit, float spread, float rest) {
  return spread == 0.0f ? at_limit : at_limit + rest;
}

// For the gelu by the normal distribution, and its slope.
struct Normal {
  float below;    // the part of a standard normal distribution below x
  float density;  // at x
};
STARRING_ACTIVATION Normal NormalAt(float x) {
  const float t = Magnitude(x);
  const float e = ExpOfNegative(-0.5f * t * t);
  // The part beyond t is e^(-t^2 / 2) times a smooth function of s, fitted for t <= 14: within 3e-8 of it.
  const float s = 1.0f / (1.0f + 0.35f * t);
  float p = -2.9146138578653336e-2f;
  p = p * s + 0.143972709774971f;
  p = p * s - 0.25571632385253906f;
  p = p * s + 0.15917649865150452f;
  p = p * s - 2.3111417889595032e-2f;
  p = p * s + 0.10550866276025772f;
  p = p * s + 0.11983270198106766f;
  p = p * s + 0.13986189663410187f;
  p = p * s + 0.13962140679359436f;
  const float beyond = e * (s * p);
  return {x < 0.0f ? beyond : 1.0f - beyond, e * 0.39894228f};
}

// gelu_tanh(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), where 2 u = x * (c + d * x^2).
constexpr float kGeluTanhC = 1.5957691f;    // sqrt(8 / pi)
constexpr float kGeluTanhD = 0.071354816f;  // 0.044715 * sqrt(8 / pi)

template <ActivationFunction function>
STARRING_ACTIVATION float ValueAt(float x, float parameter) {
  if constexpr (function == ActivationFunction::kRelu6) {
    // In this form a NaN stays a NaN.
    const float above = x < 0.0f ? 0.0f : x;
    return above > 6.0f ? 6.0f : above;
  } else if constexpr (function == ActivationFunction::kSigmoid) {
    return Sigmoid(x);
  } else if constexpr (function == ActivationFunction::kTanh) {
    return Tanh(x);
  } else if constexpr (function == ActivationFunction::kGelu) {
    return x * NormalAt(x).below;
  } else if constexpr (function == ActivationFunction::kGeluTanh) {
    return x * Sigmoid(x * (kGeluTanhC + kGeluTanhD * x * x));
  } else if constexpr (function == ActivationFunction::kSilu) {
    return x * Sigmoid(x);
  } else if constexpr (function == ActivationFunction::kScale) {
    return x * parameter;
  } else {
    return x < 0.0f ? x * parameter : x;
  }
}

// The slope, from y or x, as BackwardReadsInput(function) says.
template <ActivationFunction function>
STARRING_ACTIVATION float SlopeAt(float at, float parameter) {
  if constexpr (function == ActivationFunction::kRelu6) {
    return at > 0.0f && at < 6.0f ? 1.0f : 0.0f;
  } else if constexpr (function == ActivationFunction::kSigmoid) {
    return at * (1.0f - at);
  } else if constexpr (function == ActivationFunction::kTanh) {
    return 1.0f - at * at;
  } else if constexpr (function == ActivationFunction::kGelu) {
    const Normal normal = NormalAt(at);
    return WithRest(normal.below, normal.density, at * normal.density);
  } else if constexpr (function == ActivationFunction::kGeluTanh) {
    const float s = Sigmoid(at * (kGeluTanhC + kGeluTanhD * at * at));
    const float spread = s * (1.0f - s);
    return WithRest(s, spread, at * spread * (kGeluTanhC + 3.0f * kGeluTanhD * at * at));
  } else if constexpr (function == ActivationFunction::kSilu) {
    const float s = Sigmoid(at);
    const float spread = s * (1.0f - s);
    return WithRest(s, spread, at * spread);
  } else if constexpr (function == ActivationFunction::kScale) {
    return parameter;
  } else {
    return at > 0.0f ? 1.0f : parameter;
  }
}

}  // namespace activation
}  // namespace starring

#endif  // STARRING_KERNELS_ACTIVATION_MATH_H_
