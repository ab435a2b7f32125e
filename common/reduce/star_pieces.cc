#include "common/reduce/star_pieces.h"

#include <algorithm>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"

namespace starring {
namespace {

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

StarPieces::StarPieces(const StarSum* sum, int64_t message_bytes_max) : sum_(sum) {
  const int owner_count = sum->owners.owner_count();
  if (!sum->owners.has_chunks()) {
    piece_elements_ = std::max<int64_t>(message_bytes_max / sum->element_bytes, 1);
    // As many strides as the owner with the longest range has pieces. The others have none in the last ones.
    for (int owner = 0; owner < owner_count; ++owner) {
      usual_strides_ = std::max(usual_strides_, Quotient(RangeOf(owner).size(), piece_elements_));
    }
    stride_count_ = usual_strides_;
    return;
  }
  CHECK_EQ(sum->element_bytes, static_cast<int64_t>(sizeof(float)));
  const ElementRange elements = sum->elements;
  block_elements_ = ReductionBlockElements(owner_count);
  stride_elements_ = block_elements_ * std::max<int64_t>(message_bytes_max / ChunkBytesFor(owner_count), 1);
  const int64_t last_begin = elements.begin + (Quotient(elements.size(), block_elements_) - 1) * block_elements_;
  // With fewer owners than a whole block has, the last block cannot be part of a stride of whole blocks.
  const bool is_apart = sum->owners.OwnersOfBlock({last_begin, elements.end}) < owner_count;
  apart_begin_ = is_apart ? last_begin : elements.end;
  usual_strides_ = Quotient(apart_begin_ - elements.begin, stride_elements_);
  stride_count_ = usual_strides_ + (is_apart ? 1 : 0);
}

ElementRange StarPieces::BlocksOf(int64_t stride) const {
  if (IsJoined(stride)) return {apart_begin_, sum_->elements.end};
  const int64_t begin = sum_->elements.begin + stride * stride_elements_;
  return {begin, std::min(begin + stride_elements_, apart_begin_)};
}

ElementRange StarPieces::RangeAt(int64_t stride, int owner) const {
  // Empty after the last piece of the owner.
  const ElementRange slice = RangeOf(owner);
  const int64_t begin = std::min(slice.begin + stride * piece_elements_, slice.end);
  return {begin, std::min(begin + piece_elements_, slice.end)};
}

void StarPieces::ForEachRange(int64_t stride, int owner,
                              absl::FunctionRef<void(ElementRange range, int64_t at)> visit) const {
  if (block_elements_ == 0) {
    if (const ElementRange piece = RangeAt(stride, owner); piece.size() > 0) visit(piece, 0);
    return;
  }
  const ElementRange blocks = BlocksOf(stride);
  int64_t at = 0;
  for (int64_t begin = blocks.begin; begin < blocks.end; begin += block_elements_) {
    const ElementRange block = {begin, std::min(begin + block_elements_, blocks.end)};
    const ElementRange range = sum_->owners.SliceOfBlock(block, owner);
    if (range.size() > 0) visit(range, at);
    at += range.size();
  }
}

StarPieces::Piece StarPieces::PieceAt(int64_t stride, int owner) const {
  Piece piece;
  int count = 0;
  ForEachRange(stride, owner, [&](ElementRange range, int64_t) {
    piece.bytes += range.size() * sum_->element_bytes;
    // A second range empties `only`, which tells the star to pack the piece.
    piece.only = ++count == 1 ? range : ElementRange();
  });
  return piece;
}

}  // namespace starring
