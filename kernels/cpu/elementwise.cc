#include "common/arithmetic/instruction_set.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"

namespace starring {
namespace {

// The smallest share of a thread. Below it, starting a thread costs more than the loop.
constexpr int64_t kGrainElements = 16384;

struct Args {
  const float* a;
  const float* b;
  float* out;
  int64_t count;
  const float* y = nullptr;  // kAddReluBackward
};

// Not max(x, 0), which turns NaN into 0 on x86: a NaN must reach the trainer's check.
[[gnu::always_inline]] inline float ReluOf(float x) { return x < 0.0f ? 0.0f : x; }

[[gnu::always_inline]] inline void ReluLoop(const Args& g) {
// An output may be an input, which ivdep says is harmless here. Without it the compiler would test for overlap, and an
// operation in place would run one element at a time.
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) g.out[i] = ReluOf(g.a[i]);
}

[[gnu::always_inline]] inline void ReluBackwardLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) {
    // Read before the test. A read that depends on it keeps the compiler from making vectors of the loop.
    const float dy = g.b[i];
    g.out[i] = g.a[i] > 0.0f ? dy : 0.0f;
  }
}

[[gnu::always_inline]] inline void AddLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) g.out[i] = g.a[i] + g.b[i];
}

[[gnu::always_inline]] inline void AddReluLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) g.out[i] = ReluOf(g.a[i] + g.b[i]);
}

[[gnu::always_inline]] inline void AddReluBackwardLoop(const Args& g) {
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) {
    // The sum is computed before the test, as in ReluBackwardLoop.
    const float sum = g.a[i] + g.b[i];
    g.out[i] = g.y[i] > 0.0f ? sum : 0.0f;
  }
}

STARRING_DEFINE_CLONES(kRelu, ReluLoop, Args);
STARRING_DEFINE_CLONES(kReluBackward, ReluBackwardLoop, Args);
STARRING_DEFINE_CLONES(kAdd, AddLoop, Args);
STARRING_DEFINE_CLONES(kAddRelu, AddReluLoop, Args);
STARRING_DEFINE_CLONES(kAddReluBackward, AddReluBackwardLoop, Args);

using Clones = void (*const[kInstructionSetCount])(const Args&);

void Run(const CpuContext& context, const Clones& clones, const Args& args) {
  const auto loop = clones[static_cast<int>(context.instruction_set)];
  // Where the ranges are cut changes no bit: an element depends on its own inputs alone.
  ParallelRanges(context.threads, args.count, kGrainElements, [&](int64_t begin, int64_t end) {
    const float* y = args.y == nullptr ? nullptr : args.y + begin;
    loop({args.a + begin, args.b + begin, args.out + begin, end - begin, y});
  });
}

}  // namespace

void Relu(const CpuContext& context, const float* x, float* y, int64_t count) { Run(context, kRelu, {x, x, y, count}); }

void ReluBackward(const CpuContext& context, const float* y, const float* dy, float* dx, int64_t count) {
  Run(context, kReluBackward, {y, dy, dx, count});
}

void Add(const CpuContext& context, const float* a, const float* b, Activation activation, float* y, int64_t count) {
  if (activation == Activation::kRelu) {
    Run(context, kAddRelu, {a, b, y, count});
  } else {
    Run(context, kAdd, {a, b, y, count});
  }
}

void AddReluBackward(const CpuContext& context, const float* y, const float* a, const float* b, float* dx,
                     int64_t count) {
  Run(context, kAddReluBackward, {a, b, dx, count, y});
}

}  // namespace starring
