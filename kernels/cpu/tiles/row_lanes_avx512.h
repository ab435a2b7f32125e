// Convolutions with few channels, in AVX-512. Lanes run along an output row in the order of NHWC, column by column and
// in each column channel by channel. No lane is empty, whatever the number of channels: six channels, one lane each,
// would leave ten of sixteen lanes empty. Nothing is transposed.
//
// Words. *Float* f of an output row is channel f % channels of column f / channels. Vector v holds floats 16 v to
// 16 v + 15. Its weights depend on the channel of its first float; vectors of one *phase*, v mod phases, begin at the
// same channel and share weights. A *tap* is one element of the kernel. The kernel is cut into *parts* of at most 5 x 5
// taps of one input channel: so many weights (forward) or sums (gradient) fit in the 32 registers together with one
// vector of output for each kernel row. A part walks down a column of vectors. One permutation spreads a vector of
// input pixels over the channels, and the spread vector is then multiplied with the taps of all kernel rows.
//
//   output row:   c0 c1 .. c5 | c0 c1 .. c5 | c0 c1 .. c5 | ...      channels = 6
//   vectors:      |------- v = 0 ------|------- v = 1 ------|         phases = 3: v and v + 3 share weights
//   input pixels:  p0 p0 .. p0 p1 p1 .. p1 p2 ..                      spread by one permutation of p0 p1 p2 ...
//
// Cost: five in six instructions of the inner loop are fused multiply-adds that do not wait for memory.
//
// REQUIRES: BestInstructionSet() == kAvx512.
#ifndef STARRING_KERNELS_CPU_TILES_ROW_LANES_AVX512_H_
#define STARRING_KERNELS_CPU_TILES_ROW_LANES_AVX512_H_

#include <cstdint>

namespace starring {

inline constexpr int kRowPartMax = 5;  // kernel rows and columns of a part

// The number of phases of a row: channels / gcd(channels, 16).
constexpr int64_t RowPhases(int64_t channels) {
  int64_t phases = channels;
  for (int64_t lanes = 16; lanes > 1 && phases % 2 == 0; lanes /= 2) phases /= 2;
  return phases;
}

// One part of one image. Output row h is computed from input rows h - top to h - top + kernel_height - 1; rows outside
// of x count as zero.
struct RowPart {
  int64_t out_height = 0, out_width = 0, channels = 0;
  const float* x = nullptr;  // one channel, padded to the sides, at the part's first kernel column
  int64_t x_row = 0;         // REQUIRES: at least out_width + kernel_width + 14 finite floats from there
  int64_t x_height = 0, top = 0;
  int kernel_height = 0, kernel_width = 0;  // 1 to kRowPartMax each
};

// y = act(init + part), y (out_height, out_width, channels). `weight` (kernel_height, kernel_width, channels + 15) and
// `init` (channels + 15) repeat their channels, so that a vector may begin at any channel. Null init: the part is added
// to y.
struct RowForward {
  const float* weight = nullptr;
  const float* init = nullptr;
  bool relu = false;
  float* y = nullptr;
};
void RunRowForward(const RowPart& part, const RowForward& forward);

// sums(phase, kernel row, kernel column, lane) += dy * x and bias_sums(phase, lane) += dy, where y > 0. With a null y,
// everywhere. Null bias_sums are not computed. dy is only read. The caller adds up the lanes of a channel once, after
// the last image.
struct RowGradient {
  const float* y = nullptr;
  const float* dy = nullptr;
  float* sums = nullptr;
  float* bias_sums = nullptr;
};
void RunRowGradient(const RowPart& part, const RowGradient& gradient);

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_TILES_ROW_LANES_AVX512_H_
