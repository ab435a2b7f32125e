#include "common/arithmetic/piece_sum.h"

#include <algorithm>
#include <cstring>

#include "common/arithmetic/sum_in_order.h"
#include "common/check.h"

namespace starring {

PieceSum::PieceSum(int input_count) {
  CHECK_GE(input_count, 1);
  inputs_.resize(input_count);
  in_order_.resize(input_count);
}

void PieceSum::SetInput(int rank, Pieces pieces) { inputs_[rank] = {.rest = pieces, .current = {}}; }

void PieceSum::Next(int first_rank, std::span<float> sum) {
  const size_t input_count = inputs_.size();
  CHECK_LT(first_rank, input_count);
  while (!sum.empty()) {
    // As far as no input reaches the end of a piece.
    size_t run = sum.size();
    for (Input& input : inputs_) {
      while (input.current.empty()) {
        CHECK(!input.rest.empty()) << "input " << &input - inputs_.data() << " ends " << sum.size()
                                   << " elements early";
        input.current = input.rest.front();
        input.rest = input.rest.subspan(1);
      }
      run = std::min(run, input.current.size() / sizeof(float));
    }
    if (run == 0) {  // an element lies across two pieces
      float total = 0;
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
