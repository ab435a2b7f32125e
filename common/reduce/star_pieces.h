// Cuts a sum of a star into messages. A *piece* is the part of an owner's slice that travels as one message: from each
// contributor to the owner as a *contribution*, and back as an *answer*, the result. A *stride* is a set of pieces, at
// most one of each owner, that are sent together.
//
//   chunks   A stride is as many consecutive reduction blocks as a message holds chunks of; the piece of an owner has
//            its chunk of each block. A short last block with few owners (owner_map.h) is a stride by itself. Its
//            pieces are *joined*: a piece has several chunks of one block.
//   ranges   Stride i has the i-th piece of each owner's range.
//
// Thread safety: a value.
#ifndef STARRING_COMMON_REDUCE_STAR_PIECES_H_
#define STARRING_COMMON_REDUCE_STAR_PIECES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "common/base/element_range.h"
#include "common/reduce/star_sink.h"

namespace starring {

class StarPieces {
 public:
  // A message has at most message_bytes_max, or one chunk if that is longer. `sum` outlives this value.
  StarPieces(const StarSum* sum, int64_t message_bytes_max);

  const StarSum& sum() const { return *sum_; }

  int64_t stride_count() const { return stride_count_; }
  // Whether the pieces of `stride` have several chunks of one block.
  bool IsJoined(int64_t stride) const { return usual_strides_ <= stride && stride < stride_count_; }

  struct Piece {
    int64_t bytes = 0;  // 0: the owner has no piece
    ElementRange only;  // the range, if the piece has one; otherwise empty
  };
  Piece PieceAt(int64_t stride, int owner) const;
  // Calls visit(range, at) for each range of the piece, ascending: `at` is its first element in the message. No range
  // is empty.
  void ForEachRange(int64_t stride, int owner, absl::FunctionRef<void(ElementRange range, int64_t at)> visit) const;

 private:
  // The blocks of a stride.
  ElementRange BlocksOf(int64_t stride) const;
  // The elements of the owner's piece, with ranges.
  ElementRange RangeAt(int64_t stride, int owner) const;
  ElementRange RangeOf(int owner) const {
    return sum_->owners.RangeOf({.elements = sum_->elements, .number = sum_->number}, owner);
  }

  const StarSum* sum_ = nullptr;
  int64_t block_elements_ = 0;   // 0: the owners have ranges
  int64_t piece_elements_ = 0;   // with ranges
  int64_t stride_elements_ = 0;  // with chunks, of all but the last strides
  int64_t apart_begin_ = 0;      // with chunks: of the short last block, or the sum's end
  int64_t usual_strides_ = 0;
  int64_t stride_count_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_STAR_PIECES_H_
