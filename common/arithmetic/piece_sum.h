// Adds the contributions of all workers as they lie in received messages: each a list of byte pieces of any length and
// alignment, so that an element may even straddle two pieces. Nothing is copied into one contiguous array first.
//
// Allocates in the constructor only. Thread safety: one thread at a time.
#ifndef STARRING_COMMON_ARITHMETIC_PIECE_SUM_H_
#define STARRING_COMMON_ARITHMETIC_PIECE_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starring {

class PieceSum {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  PieceSum() = default;
  // REQUIRES: input_count >= 1.
  explicit PieceSum(int input_count);

  // Input `rank` begins at the first byte of `pieces`, which stay alive and unchanged until the last Next.
  void SetInput(int rank, Pieces pieces);

  // Writes the sum of the next sum.size() elements of all inputs, added left to right from `first_rank` on:
  // first_rank, first_rank + 1, ..., wrapping at input_count. REQUIRES: every input was set and holds as many.
  void Next(int first_rank, std::span<float> sum);

 private:
  struct Input {
    Pieces rest;  // behind the current piece
    std::span<const std::byte> current;
  };
  static float ReadOne(Input& input);

  std::vector<Input> inputs_;
  std::vector<const std::byte*> in_order_;
};

}  // namespace starring

#endif  // STARRING_COMMON_ARITHMETIC_PIECE_SUM_H_
