// The parameter vector: the place of every tensor in it (common/README.md, "Words").
//
// A layout lists the trainable tensors of a model in forward order. Each tensor starts on a 64-byte boundary of one
// flat float32 array; the gaps hold zeros and travel with everything else. Every process of a job builds the same
// layout and compares `hash()`.
//
// Thread safety: immutable after Create; any thread may call any method.
#ifndef STARRING_COMMON_JOB_LAYOUT_H_
#define STARRING_COMMON_JOB_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/element_range.h"
#include "common/base/memory.h"

namespace starring {

struct TensorSpec {
  // PyTorch's state_dict name, "conv1.weight".
  std::string name;
  // Sizes in our memory order, slowest first: {out, kernel_height, kernel_width, in} for a convolution, {out, in} for
  // dense.
  std::vector<int64_t> dims;
  // Axis i of PyTorch's order is axis torch_axes[i] of `dims`; empty means the same order. A dense layer after a
  // flatten has dims {out, height, width, channels} and torch_axes {0, 3, 1, 2}.
  std::vector<int> torch_axes;
  // PyTorch's shape, the same number of elements as `dims`; empty means the permuted `dims`.
  std::vector<int64_t> torch_shape;
};

struct Tensor {
  TensorSpec spec;
  ElementRange range;  // without the gap after it
};

class Layout {
 public:
  // Each tensor begins on a cache line.
  static constexpr int64_t kAlignmentElements = kCacheLineBytes / static_cast<int64_t>(sizeof(float));

  Layout() = default;

  // Fails with InvalidArgument on an empty or repeated name, a size below 1, axes that are no permutation, a shape
  // whose element count differs, or more tensors, axes or elements than limits.h allows.
  static absl::StatusOr<Layout> Create(std::vector<TensorSpec> tensors);

  const std::vector<Tensor>& tensors() const { return tensors_; }

  // Length of the parameter vector, gaps included; a multiple of kAlignmentElements.
  int64_t element_count() const { return element_count_; }

  // Trainable scalars, gaps not counted.
  int64_t parameter_count() const { return parameter_count_; }

  // SHA-256 in hexadecimal over names, dims, PyTorch orders and offsets.
  const std::string& hash() const { return hash_; }

  // The tensor that holds `element`, or an empty name inside a gap.
  std::string_view TensorAt(int64_t element) const;

 private:
  std::vector<Tensor> tensors_;
  int64_t element_count_ = 0;
  int64_t parameter_count_ = 0;
  std::string hash_;
};

// PyTorch's shape of the tensor.
std::vector<int64_t> TorchShape(const TensorSpec& spec);

// Copies a tensor from our memory order (tensor.range of the parameter vector) to PyTorch's, and back.
// REQUIRES: both spans hold tensor.range.size() elements and do not overlap.
void ToTorchOrder(const TensorSpec& spec, std::span<const float> ours, std::span<float> torch);
void FromTorchOrder(const TensorSpec& spec, std::span<const float> torch, std::span<float> ours);

}  // namespace starring

#endif  // STARRING_COMMON_JOB_LAYOUT_H_
