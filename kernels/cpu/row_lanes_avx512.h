// Convolutions with few channels, in AVX-512: lanes run along an output row as NHWC has it, columns times channels, so
// that none is empty whatever the number of channels, and no transposition is needed.
//
// Words. *Float* f of an output row is channel f % channels of column f / channels. A vector holds floats 16 v to
// 16 v + 15; its weights depend on where in the channels it begins, so vectors of one *phase*, v mod phases, have the
// same. The kernel is cut in *parts* of at most 5 x 5 taps of one input channel: as many weights (forward) or sums
// (gradient) as registers hold beside one output row per kernel row. A part walks down a column of vectors: each vector
// of input pixels is spread over the channels by one permutation and then meets all kernel rows.
//
// Cost: of all instructions in the inner loop five in six are fused multiply-adds that do not wait for memory.
//
// Only on a CPU with AVX-512: REQUIRES BestInstructionSet() == kAvx512.
#ifndef STARRING_KERNELS_CPU_ROW_LANES_AVX512_H_
#define STARRING_KERNELS_CPU_ROW_LANES_AVX512_H_

#include <cstdint>

namespace starring {

inline constexpr int kRowPartMax = 5;  // kernel rows and columns of a part

// How many phases a row of `channels` has.
constexpr int64_t RowPhases(int64_t channels) {
  int64_t phases = channels;
  for (int64_t lanes = 16; lanes > 1 && phases % 2 == 0; lanes /= 2) phases /= 2;
  return phases;
}

// One part, one image. Output row h meets input rows h - top to h - top + kernel_height - 1; those outside x are zero.
struct RowPart {
  int64_t out_height = 0, out_width = 0, channels = 0;
  const float* x = nullptr;  // one channel, padded to the sides, at the part's first kernel column
  int64_t x_row = 0;         // REQUIRES: at least out_width + kernel_width + 14 finite floats from there
  int64_t x_height = 0, top = 0;
  int kernel_height = 0, kernel_width = 0;  // 1 to kRowPartMax each
};

// y = act(init + part), y (out_height, out_width, channels). `weight` (kernel_height, kernel_width, channels + 15) and
// `init` (channels + 15) repeat their channels; a null init stands for y itself.
struct RowForward {
  const float* weight = nullptr;
  const float* init = nullptr;
  bool relu = false;
  float* y = nullptr;
};
void RunRowForward(const RowPart& part, const RowForward& forward);

// sums(phase, kernel row, kernel column, lane) += dy * x and bias_sums(phase, lane) += dy, of dy where y > 0. A null y
// masks nothing, null bias_sums are not taken; dy is only read. Adding up the lanes of a channel is left to the caller:
// once, at the end.
struct RowGradient {
  const float* y = nullptr;
  const float* dy = nullptr;
  float* sums = nullptr;
  float* bias_sums = nullptr;
};
void RunRowGradient(const RowPart& part, const RowGradient& gradient);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ROW_LANES_AVX512_H_
