#include "common/arithmetic/sum_in_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/check.h"

namespace starring {
namespace {

static_assert(std::endian::native == std::endian::little, "contributions are little-endian float32");

// A float on any byte boundary. A plain float* would promise an alignment that a message does not have; this type makes
// the compiler use unaligned loads, which cost nothing when the address is aligned.
using AnywhereFloat = float __attribute__((aligned(1), may_alias));

const AnywhereFloat* Floats(const std::byte* bytes) { return reinterpret_cast<const AnywhereFloat*>(bytes); }

struct SumArgs {
  const AnywhereFloat* a;
  const AnywhereFloat* b;
  const AnywhereFloat* c;
  const AnywhereFloat* d;
  float* sum;
  int64_t count;
};

// `sum` may be `a`. The pragma tells the compiler what it cannot see: an element is read before it is written. Without
// it, each loop would begin with tests for overlap.
[[gnu::always_inline]] inline void Sum2Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}
[[gnu::always_inline]] inline void Sum3Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = (a[i] + b[i]) + c[i];
}
[[gnu::always_inline]] inline void Sum4Loop(const SumArgs& args) {
  const auto [a, b, c, d, sum, count] = args;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = ((a[i] + b[i]) + c[i]) + d[i];
}

STARRING_DEFINE_CLONES(kSum2, Sum2Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum3, Sum3Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum4, Sum4Loop, SumArgs);

// More than four inputs are added in groups. The running sum of this many elements stays in the L1 cache from one group
// to the next, so that memory is still read once and written once.
constexpr int64_t kBlockElements = 2048;

}  // namespace

void SumInOrder(std::span<const std::byte* const> inputs, std::span<float> sum, InstructionSet set) {
  CHECK(!inputs.empty());
  const int clone = static_cast<int>(set);
  if (inputs.size() == 1) {
    // memmove is needed, because `sum` may be the input. An empty span may have a null pointer, which memmove must not
    // get.
    if (!sum.empty()) std::memmove(sum.data(), inputs[0], sum.size_bytes());
    return;
  }
  const int64_t count = std::ssize(sum);
  const int64_t block = inputs.size() <= 4 ? count : kBlockElements;
  for (int64_t begin = 0; begin < count; begin += block) {
    const auto at = [&](size_t input) { return Floats(inputs[input] + begin * sizeof(float)); };
    SumArgs args = {.a = at(0),
                    .b = at(1),
                    .c = nullptr,
                    .d = nullptr,
                    .sum = sum.data() + begin,
                    .count = std::min(block, count - begin)};
    // Each round adds up to three further inputs to the running sum, which is inputs[0] in the first round and `sum`
    // afterwards: 8 inputs take rounds of 3, 3 and 1. The running sum is always the left operand, so the order is that
    // of the inputs.
    for (size_t next = 1; next < inputs.size();) {
      const size_t left = inputs.size() - next;
      args.b = at(next);
      if (left == 1) {
        kSum2[clone](args);
        break;
      }
      args.c = at(next + 1);
      if (left == 2) {
        kSum3[clone](args);
        break;
      }
      args.d = at(next + 2);
      kSum4[clone](args);
      args.a = args.sum;
      next += 3;
    }
  }
}

PieceSum::PieceSum(int input_count) {
  CHECK_GE(input_count, 1);
  inputs_.resize(input_count);
  in_order_.resize(input_count);
}

void PieceSum::SetInput(int rank, Pieces pieces) { inputs_[rank] = {.rest = pieces, .current = {}}; }

// Cuts the elements into runs that are contiguous in every input and sums each run by SumInOrder. Only an element that
// straddles two pieces of an input is added alone: at most one for each end of a piece.
void PieceSum::Next(int first_rank, std::span<float> sum) {
  const size_t input_count = inputs_.size();
  CHECK_LT(first_rank, input_count);
  while (!sum.empty()) {
    // Inputs have their pieces cut in different places. `run` becomes the longest stretch in which no input reaches the
    // end of its piece.
    size_t run = sum.size();
    for (Input& input : inputs_) {
      // This is a loop, because pieces may be empty.
      while (input.current.empty()) {
        CHECK(!input.rest.empty()) << "input " << &input - inputs_.data() << " ends " << sum.size()
                                   << " elements early";
        input.current = input.rest.front();
        input.rest = input.rest.subspan(1);
      }
      run = std::min(run, input.current.size() / sizeof(float));
    }
    if (run == 0) {     // some input's next element straddles two pieces: this one is put together byte by byte
      float total = 0;  // not added to: 0 + -0 would change the sign of a sum of one input
      for (size_t k = 0; k < input_count; ++k) {
        const float value = ReadOne(inputs_[(first_rank + k) % input_count]);
        total = k == 0 ? value : total + value;
      }
      sum[0] = total;
      sum = sum.subspan(1);
      continue;
    }
    for (size_t k = 0; k < input_count; ++k) {
      Input& input = inputs_[(first_rank + k) % input_count];
      in_order_[k] = input.current.data();
      input.current = input.current.subspan(run * sizeof(float));
    }
    // Nothing is copied: the pointers go into the pieces as the transport delivered them.
    SumInOrder(in_order_, sum.first(run));
    sum = sum.subspan(run);
  }
}

float PieceSum::ReadOne(Input& input) {
  std::byte bytes[sizeof(float)];
  for (size_t filled = 0; filled < sizeof(float);) {
    if (input.current.empty()) {
      CHECK(!input.rest.empty()) << "an input ends inside an element";
      input.current = input.rest.front();
      input.rest = input.rest.subspan(1);
      continue;
    }
    const size_t taken = std::min(sizeof(float) - filled, input.current.size());
    std::memcpy(bytes + filled, input.current.data(), taken);
    input.current = input.current.subspan(taken);
    filled += taken;
  }
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace starring
