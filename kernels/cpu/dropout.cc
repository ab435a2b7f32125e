#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/philox.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

// Computes the keep bytes (1 or 0) of Philox groups [first_group, first_group + count). A group is one counter: four
// words of random bits, and so four elements.
struct MaskArgs {
  RandomKey key;
  uint32_t threshold;  // a word is dropped when its upper 24 bits are below
  uint64_t first_group;
  int64_t count;
  uint32_t* keep;
};

// Philox4x32 (common/arithmetic/philox.h) for 16 groups at a time. Written as loops over lanes, a round becomes vector
// instructions in the clones.
constexpr int kPhiloxLanes = 16;

[[gnu::always_inline]] inline void PhiloxRound(uint32_t (&c)[4][kPhiloxLanes], uint32_t key0, uint32_t key1) {
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0][i];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2][i];
    c[0][i] = static_cast<uint32_t>(product1 >> 32) ^ c[1][i] ^ key0;
    c[1][i] = static_cast<uint32_t>(product1);
    c[2][i] = static_cast<uint32_t>(product0 >> 32) ^ c[3][i] ^ key1;
    c[3][i] = static_cast<uint32_t>(product0);
  }
}

[[gnu::always_inline]] inline void MaskLoop(const MaskArgs& g) {
  for (int64_t begin = 0; begin < g.count; begin += kPhiloxLanes) {
    uint32_t c[4][kPhiloxLanes];
    for (int i = 0; i < kPhiloxLanes; ++i) {
      // This is RandomKey::At for 16 groups. Groups beyond the last are computed too, because a loop of constant length
      // becomes vectors; they are not stored.
      const uint64_t group = g.first_group + static_cast<uint64_t>(begin + i);
      c[0][i] = static_cast<uint32_t>(group);
      c[1][i] = static_cast<uint32_t>(group >> 32);
      c[2][i] = g.key.epoch;
      c[3][i] = static_cast<uint32_t>(g.key.purpose) << 24 | g.key.stream;
    }
    uint32_t key0 = static_cast<uint32_t>(g.key.seed), key1 = static_cast<uint32_t>(g.key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      PhiloxRound(c, key0, key1);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    // Little-endian: byte w of a group's word is the keep byte of its element w.
    uint32_t keep[kPhiloxLanes];
    for (int i = 0; i < kPhiloxLanes; ++i) {
      keep[i] = static_cast<uint32_t>(c[0][i] >> 8 >= g.threshold) |
                static_cast<uint32_t>(c[1][i] >> 8 >= g.threshold) << 8 |
                static_cast<uint32_t>(c[2][i] >> 8 >= g.threshold) << 16 |
                static_cast<uint32_t>(c[3][i] >> 8 >= g.threshold) << 24;
    }
    const int lanes = static_cast<int>(std::min<int64_t>(kPhiloxLanes, g.count - begin));
    for (int i = 0; i < lanes; ++i) g.keep[begin + i] = keep[i];
  }
}

struct ApplyArgs {
  const float* in;
  const uint8_t* keep;
  float scale;
  float* out;
  int64_t count;
};

[[gnu::always_inline]] inline void ApplyLoop(const ApplyArgs& g) {
// Layers drop in place: `out` may be `in`, element for element, which is harmless (elementwise.cc, ReluLoop).
#pragma GCC ivdep
  for (int64_t i = 0; i < g.count; ++i) {
    // The product is computed before the test, so that the loop has no branch. A factor of 0 or 1 instead of the
    // selection would turn a dropped infinity into NaN.
    const float scaled = g.in[i] * g.scale;
    g.out[i] = g.keep[i] != 0 ? scaled : 0.0f;
  }
}

STARRING_DEFINE_CLONES(kMask, MaskLoop, MaskArgs);
STARRING_DEFINE_CLONES(kApply, ApplyLoop, ApplyArgs);

// The smallest shares of a thread; below them, starting a thread costs more than the loop.
constexpr int64_t kGrainGroups = 1024;
constexpr int64_t kGrainElements = 16384;

class CpuDropout : public FloatDropout {
 public:
  CpuDropout(const CpuContext* context, const DropoutSpec& spec, AlignedMemory keep)
      : context_(context),
        spec_(spec),
        // A word is dropped where UnitFloat(word) < rate. Both sides times 2^24 are exact, so the test is on integers.
        threshold_(static_cast<uint32_t>(std::ceil(double{spec.rate} * 0x1.0p24))),
        keep_(std::move(keep)) {}

  void Forward(const float* x, int64_t step, int64_t first_sample, float* y) override {
    CHECK(step >= 0 && step <= std::numeric_limits<uint32_t>::max()) << "step " << step;
    CHECK_GE(first_sample, 0);
    const uint64_t first = static_cast<uint64_t>(first_sample) * static_cast<uint64_t>(spec_.sample_elements);
    // Words are numbered through the whole global batch, so a rank's first word may be in the middle of a group. The
    // group is computed whole; Apply skips the `offset_` bytes in front.
    const uint64_t first_group = first / 4;
    offset_ = static_cast<int64_t>(first % 4);
    const RandomKey key = {.seed = spec_.seed,
                           .purpose = RandomPurpose::kDropout,
                           .stream = spec_.stream,
                           .epoch = static_cast<uint32_t>(step)};
    const auto mask = kMask[static_cast<int>(context_->instruction_set)];
    auto* const keep = reinterpret_cast<uint32_t*>(keep_.data());
    ParallelRanges(context_->threads, (offset_ + Count() + 3) / 4, kGrainGroups, [&](int64_t begin, int64_t end) {
      mask({key, threshold_, first_group + static_cast<uint64_t>(begin), end - begin, keep + begin});
    });
    Apply(x, y);
  }

  // Backward reads the bytes of Forward again. Computing them takes ten rounds of Philox for four elements.
  void Backward(const float* dy, float* dx) override { Apply(dy, dx); }

 private:
  int64_t Count() const { return spec_.batch * spec_.sample_elements; }

  void Apply(const float* in, float* out) const {
    const auto apply = kApply[static_cast<int>(context_->instruction_set)];
    const auto* const keep = reinterpret_cast<const uint8_t*>(keep_.data()) + offset_;
    const float scale = 1.0f / (1.0f - spec_.rate);
    ParallelRanges(context_->threads, Count(), kGrainElements, [&](int64_t begin, int64_t end) {
      apply({in + begin, keep + begin, scale, out + begin, end - begin});
    });
  }

  const CpuContext* const context_;
  const DropoutSpec spec_;
  const uint32_t threshold_;
  const AlignedMemory keep_;  // a byte for each word of the groups of the last Forward
  int64_t offset_ = 0;        // where in keep_ the first element is: it may be in the middle of a group
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dropout>> CreateCpuDropout(CpuContext* context, const DropoutSpec& spec) {
  RETURN_IF_ERROR(CheckShape(spec));
  // Up to three words come before the first element, and groups are whole.
  const int64_t size_bytes = RoundUp(spec.batch * spec.sample_elements + 3, 4);
  AlignedMemory keep(size_bytes);
  if (keep.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("dropout: no memory for ", size_bytes, " bytes"));
  }
  return std::make_unique<CpuDropout>(context, spec, std::move(keep));
}

}  // namespace starring
