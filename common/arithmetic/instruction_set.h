// Chooses the clone of a vectorised loop. The loops of common/ are compiled once for each instruction set, and a clone
// is chosen at run time, so that one binary runs on any x86-64 and is fast on a new one. All are compiled with
// -ffp-contract=off and add in an order that the source fixes, so every clone gives the same bits; tests run them all.
//
// GCC's target_clones would be shorter, but a test cannot force its choice, and it crashes under ThreadSanitizer,
// because its resolver runs before the sanitizer has started.
#ifndef STARRING_COMMON_ARITHMETIC_INSTRUCTION_SET_H_
#define STARRING_COMMON_ARITHMETIC_INSTRUCTION_SET_H_

namespace starring {

enum class InstructionSet { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr int kInstructionSetCount = 3;

// The widest set that this CPU and this build have. All narrower sets also work.
InstructionSet BestInstructionSet();

}  // namespace starring

// Defines `name`, an array indexed by InstructionSet of functions void(const Args&), each an inlined copy of `loop`.
// REQUIRES: `loop` is marked [[gnu::always_inline]].
#if defined(__x86_64__)
#define STARRING_DEFINE_CLONES(name, loop, Args)                                         \
  void name##Baseline(const Args& args) { loop(args); }                                  \
  __attribute__((target("avx2"))) void name##Avx2(const Args& args) { loop(args); }      \
  __attribute__((target("avx512f"))) void name##Avx512(const Args& args) { loop(args); } \
  constexpr void (*name[kInstructionSetCount])(const Args&) = {name##Baseline, name##Avx2, name##Avx512}
#else
#define STARRING_DEFINE_CLONES(name, loop, Args)        \
  void name##Baseline(const Args& args) { loop(args); } \
  constexpr void (*name[kInstructionSetCount])(const Args&) = {name##Baseline, name##Baseline, name##Baseline}
#endif

#endif  // STARRING_COMMON_ARITHMETIC_INSTRUCTION_SET_H_
