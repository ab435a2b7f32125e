#include "common/arithmetic/sum_in_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"

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

// Whole trees of four and eight leaves, so that most partial sums never leave the registers.
struct TreeArgs {
  const AnywhereFloat* in[8];
  float* sum;
  int64_t count;
};
[[gnu::always_inline]] inline void Tree4Loop(const TreeArgs& args) {
  const AnywhereFloat *a = args.in[0], *b = args.in[1], *c = args.in[2], *d = args.in[3];
  float* const sum = args.sum;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = (a[i] + b[i]) + (c[i] + d[i]);
}
[[gnu::always_inline]] inline void Tree8Loop(const TreeArgs& args) {
  const AnywhereFloat *a = args.in[0], *b = args.in[1], *c = args.in[2], *d = args.in[3];
  const AnywhereFloat *e = args.in[4], *f = args.in[5], *g = args.in[6], *h = args.in[7];
  float* const sum = args.sum;
  const int64_t count = args.count;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
}

STARRING_DEFINE_CLONES(kTree4, Tree4Loop, TreeArgs);
STARRING_DEFINE_CLONES(kTree8, Tree8Loop, TreeArgs);
STARRING_DEFINE_CLONES(kSum2, Sum2Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum3, Sum3Loop, SumArgs);
STARRING_DEFINE_CLONES(kSum4, Sum4Loop, SumArgs);

// More than four inputs are added in groups. The running sum of this many elements stays in the L1 cache from one group
// to the next, so that memory is still read once and written once.
constexpr int64_t kBlockElements = 2048;

// A tree is added block by block, too. It keeps a partial sum for every complete subtree that waits for its sibling: at
// most one of each power of two. The first is kept in `sum`, the others in 20 KiB of the stack, which fit the L1 cache
// together with what is read.
constexpr int64_t kTreeBlockElements = 512;
constexpr int kPartialSumsMax = 11;
static_assert(kWorldSizeMax < 1 << kPartialSumsMax);

// Adds one block as a binary counter adds ones: the next complete subtree of up to eight inputs is pushed on a stack,
// and while the two subtrees on top have the same number of leaves, they become one. The subtrees left at the end are
// powers of two in descending order, as the tree's right spine has them, and are added from the right.
class BlockTree {
 public:
  BlockTree(std::span<const std::byte* const> inputs, std::span<const int> leaves, int clone)
      : inputs_(inputs), leaves_(leaves), clone_(clone) {}

  // Elements [begin, begin + count) of the inputs, into sum[0, count). REQUIRES: count <= kTreeBlockElements.
  void Add(int64_t begin, int64_t count, float* sum) {
    begin_ = begin;
    count_ = count;
    sum_ = sum;
    depth_ = 0;
    for (size_t next = 0; next < inputs_.size();) {
      next += PushSubtree(next);
      while (depth_ >= 2 && stack_[depth_ - 2].leaves == top().leaves) AddTopTwo();
    }
    while (depth_ >= 2) AddTopTwo();
  }

 private:
  // Not initialised: a call would spend more on the stack of them than on a small block.
  struct Subtree {
    const AnywhereFloat* values;
    size_t leaves;
  };
  Subtree& top() { return stack_[depth_ - 1]; }
  const AnywhereFloat* Input(size_t input) const { return Floats(inputs_[input] + begin_ * sizeof(float)); }

  // The place of the partial sum at `depth` of the stack. The bottom one is where the whole sum ends.
  float* Place(int depth) { return depth == 0 ? sum_ : scratch_[depth - 1]; }

  // Pushes the sum of eight, four, two or one inputs from `next` on, the most that are there, and returns their number.
  size_t PushSubtree(size_t next) {
    if (!leaves_.empty()) {
      stack_[depth_++] = {.values = Input(next), .leaves = static_cast<size_t>(leaves_[next])};
      return 1;
    }
    const size_t left = inputs_.size() - next;
    const size_t leaves = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    float* const place = Place(depth_);
    if (leaves >= 4) {
      TreeArgs args = {.in = {}, .sum = place, .count = count_};
      for (size_t i = 0; i < leaves; ++i) args.in[i] = Input(next + i);
      (leaves == 8 ? kTree8 : kTree4)[clone_](args);
    } else if (leaves == 2) {
      AddPair(Input(next), Input(next + 1), place);
    }
    // One input is its own sum: it is read where it is.
    stack_[depth_++] = {.values = leaves == 1 ? Input(next) : Floats(reinterpret_cast<std::byte*>(place)),
                        .leaves = leaves};
    return leaves;
  }

  void AddTopTwo() {
    const Subtree right = stack_[--depth_];
    float* const place = Place(depth_ - 1);
    AddPair(top().values, right.values, place);
    top() = {.values = Floats(reinterpret_cast<std::byte*>(place)), .leaves = top().leaves + right.leaves};
  }

  void AddPair(const AnywhereFloat* a, const AnywhereFloat* b, float* sum) {
    kSum2[clone_]({.a = a, .b = b, .c = nullptr, .d = nullptr, .sum = sum, .count = count_});
  }

  const std::span<const std::byte* const> inputs_;
  const std::span<const int> leaves_;
  const int clone_;
  int64_t begin_ = 0;
  int64_t count_ = 0;
  float* sum_ = nullptr;
  int depth_ = 0;
  Subtree stack_[kPartialSumsMax];
  alignas(64) float scratch_[kPartialSumsMax - 1][kTreeBlockElements];  // not initialised: 20 KiB a call
};

}  // namespace

void SumAsTree(std::span<const std::byte* const> inputs, std::span<float> sum, InstructionSet set,
               std::span<const int> leaves) {
  CHECK(!inputs.empty());
  CHECK_LE(inputs.size(), kWorldSizeMax);
  CHECK(leaves.empty() || leaves.size() == inputs.size()) << leaves.size();
  // Inputs of equally many leaves are added as if each were one.
  if (std::all_of(leaves.begin(), leaves.end(), [&](int count) { return count == leaves[0]; })) leaves = {};
  // Two inputs, or three leaves, have one order, and the chain needs no blocks.
  if (inputs.size() <= 2 || (inputs.size() == 3 && leaves.empty())) return SumInOrder(inputs, sum, set);
  BlockTree tree(inputs, leaves, static_cast<int>(set));
  const int64_t count = std::ssize(sum);
  for (int64_t begin = 0; begin < count; begin += kTreeBlockElements) {
    tree.Add(begin, std::min(kTreeBlockElements, count - begin), sum.data() + begin);
  }
}

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

PieceSum::PieceSum(ReductionOrder reduction) : order_(reduction.order) {
  CHECK_GE(reduction.world_size, 1);
  inputs_.resize(reduction.world_size);
  in_order_.resize(reduction.world_size);
  straddling_.resize(reduction.world_size);
}

PieceSum PieceSum::OfNodes(std::vector<int> leaves) {
  PieceSum sum(ReductionOrder{.order = SumOrder::kTree, .world_size = static_cast<int>(leaves.size())});
  sum.leaves_ = std::move(leaves);
  return sum;
}

void PieceSum::SetInput(int rank, Pieces pieces) { inputs_[rank] = {.rest = pieces, .current = {}}; }

// Cuts the elements into runs that are contiguous in every input and sums each run by SumInOrder. Only an element that
// straddles two pieces of an input is added alone: at most one for each end of a piece.
void PieceSum::Next(int first_rank, std::span<float> sum) {
  const size_t input_count = inputs_.size();
  CHECK_LT(first_rank, input_count);
  CHECK(order_ == SumOrder::kChain || first_rank == 0) << first_rank;
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
    const bool straddles = run == 0;  // some input's next element is in two pieces: it is put together byte by byte
    for (size_t k = 0; k < input_count; ++k) {
      Input& input = inputs_[(first_rank + k) % input_count];
      if (straddles) {
        straddling_[k] = ReadOne(input);
        in_order_[k] = reinterpret_cast<const std::byte*>(&straddling_[k]);
      } else {
        in_order_[k] = input.current.data();
        input.current = input.current.subspan(run * sizeof(float));
      }
    }
    run = std::max<size_t>(run, 1);
    // Nothing else is copied: the pointers go into the pieces as the transport delivered them.
    if (order_ == SumOrder::kChain) {
      SumInOrder(in_order_, sum.first(run));
    } else {
      SumAsTree(in_order_, sum.first(run), BestInstructionSet(), leaves_);
    }
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
