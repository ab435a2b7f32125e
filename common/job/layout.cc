#include "common/job/layout.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/security/sha256.h"

namespace starring {
namespace {

absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (size < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("shape {", absl::StrJoin(sizes, ", "), "} has size ", size, ", sizes are 1 or more"));
    // The bound is compared by division, because the product could overflow.
    if (size > kElementCountMax / count) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape {", absl::StrJoin(sizes, ", "), "} has more than ", kElementCountMax, " elements"));
    }
    count *= size;
  }
  return count;
}

absl::Status ValidateAxes(const TensorSpec& spec) {
  if (spec.torch_axes.empty()) return absl::OkStatus();
  // A permutation, sorted, is 0, 1, 2 and so on.
  std::vector<int> sorted = spec.torch_axes;
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = sorted.size() == spec.dims.size();
  for (size_t i = 0; is_permutation && i < sorted.size(); ++i) is_permutation = sorted[i] == static_cast<int>(i);
  if (is_permutation) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("torch_axes {", absl::StrJoin(spec.torch_axes, ", "),
                                                 "} is no permutation of the ", spec.dims.size(), " axes of {",
                                                 absl::StrJoin(spec.dims, ", "), "}"));
}

// The number of elements of a valid `spec`.
absl::StatusOr<int64_t> ValidateTensor(const TensorSpec& spec) {
  if (spec.dims.size() > kTensorAxesMax || spec.torch_shape.size() > kTensorAxesMax) {
    return absl::InvalidArgumentError(absl::StrCat("has ", std::max(spec.dims.size(), spec.torch_shape.size()),
                                                   " axes, at most ", kTensorAxesMax, " are allowed"));
  }
  ASSIGN_OR_RETURN(const int64_t count, CountElements(spec.dims));
  RETURN_IF_ERROR(ValidateAxes(spec));
  // torch_axes decide the order of the elements. torch_shape only joins or splits axes, so it must have as many
  // elements.
  if (!spec.torch_shape.empty()) {
    ASSIGN_OR_RETURN(const int64_t torch_count, CountElements(spec.torch_shape), "torch_shape");
    if (torch_count != count) {
      return absl::InvalidArgumentError(absl::StrCat("dims {", absl::StrJoin(spec.dims, ", "), "} have ", count,
                                                     " elements, torch_shape {", absl::StrJoin(spec.torch_shape, ", "),
                                                     "} has ", torch_count));
    }
  }
  return count;
}

std::string HashOf(const std::vector<Tensor>& tensors) {
  Sha256 digest;
  for (const Tensor& tensor : tensors) {
    // The name's length comes first, so that no name can imitate the text of further tensors.
    digest.Update(absl::StrCat(tensor.spec.name.size(), ":", tensor.spec.name, " dims ",
                               absl::StrJoin(tensor.spec.dims, ","), " axes ",
                               absl::StrJoin(tensor.spec.torch_axes, ","), " shape ",
                               absl::StrJoin(tensor.spec.torch_shape, ","), " at ", tensor.range.begin, "\n"));
  }
  return digest.HexDigest();
}

// Walks the elements in PyTorch's order: visit(i, j), where i is the index there and j the index in our order. An
// odometer with one digit per axis, because a division for each axis of each element would take most of the time. Cost:
// one addition for each element, and one more for each digit that starts over.
template <typename Visit>
void ForEachInTorchOrder(const TensorSpec& spec, int64_t count, Visit visit) {
  const size_t axis_count = spec.torch_axes.size();
  std::vector<int64_t> our_strides(spec.dims.size(), 1);
  for (size_t a = spec.dims.size(); a-- > 1;) our_strides[a - 1] = our_strides[a] * spec.dims[a];
  std::vector<int64_t> sizes(axis_count), strides(axis_count), index(axis_count, 0);
  for (size_t a = 0; a < axis_count; ++a) {
    sizes[a] = spec.dims[spec.torch_axes[a]];
    strides[a] = our_strides[spec.torch_axes[a]];
  }
  int64_t ours = 0;
  for (int64_t i = 0; i < count; ++i) {
    visit(i, ours);
    for (size_t a = axis_count; a-- > 0;) {
      // The last digit moves on. A digit that has passed its axis's end takes back what it added, and the digit before
      // it moves on instead.
      ours += strides[a];
      if (++index[a] < sizes[a]) break;
      ours -= strides[a] * sizes[a];
      index[a] = 0;
    }
  }
}

}  // namespace

absl::StatusOr<Layout> Layout::Create(std::vector<TensorSpec> tensors) {
  if (tensors.size() > kTensorCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout has ", tensors.size(), " tensors, at most ", kTensorCountMax, " are allowed"));
  }
  Layout layout;
  std::set<std::string> names;
  for (TensorSpec& spec : tensors) {
    if (spec.name.empty())
      return absl::InvalidArgumentError(absl::StrCat("tensor ", layout.tensors_.size(), " of the layout has no name"));
    // A checkpoint finds tensors by name.
    if (!names.insert(spec.name).second)
      return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, " is there twice"));
    ASSIGN_OR_RETURN(const int64_t count, ValidateTensor(spec), "tensor ", spec.name);
    const int64_t begin = layout.element_count_;
    // The gap up to the next cache line belongs to no tensor, but it counts in the vector's length.
    const int64_t padded = RoundUp(count, kAlignmentElements);
    if (padded > kElementCountMax - begin) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, " makes the parameter vector longer than ",
                                                     kElementCountMax, " elements"));
    }
    layout.tensors_.push_back({.spec = std::move(spec), .range = {begin, begin + count}});
    layout.element_count_ += padded;
    layout.parameter_count_ += count;
  }
  layout.hash_ = HashOf(layout.tensors_);
  return layout;
}

std::string_view Layout::TensorAt(int64_t element) const {
  // Tensors ascend in the vector, so the candidate is the last one that does not begin after `element`.
  auto after = std::upper_bound(tensors_.begin(), tensors_.end(), element,
                                [](int64_t e, const Tensor& tensor) { return e < tensor.range.begin; });
  if (after == tensors_.begin()) return {};
  const Tensor& tensor = *std::prev(after);
  return element < tensor.range.end ? std::string_view(tensor.spec.name) : std::string_view();
}

// `torch_shape` comes first: a dense layer after a flatten has four axes in memory and two in PyTorch.
std::vector<int64_t> TorchShape(const TensorSpec& spec) {
  if (!spec.torch_shape.empty()) return spec.torch_shape;
  if (spec.torch_axes.empty()) return spec.dims;
  std::vector<int64_t> shape;
  for (int axis : spec.torch_axes) shape.push_back(spec.dims[axis]);
  return shape;
}

void ToTorchOrder(const TensorSpec& spec, std::span<const float> ours, std::span<float> torch) {
  CHECK_EQ(ours.size(), torch.size());
  if (spec.torch_axes.empty()) {
    std::copy(ours.begin(), ours.end(), torch.begin());
    return;
  }
  ForEachInTorchOrder(spec, std::ssize(ours), [&](int64_t i, int64_t j) { torch[i] = ours[j]; });
}

void FromTorchOrder(const TensorSpec& spec, std::span<const float> torch, std::span<float> ours) {
  CHECK_EQ(ours.size(), torch.size());
  if (spec.torch_axes.empty()) {
    std::copy(torch.begin(), torch.end(), ours.begin());
    return;
  }
  ForEachInTorchOrder(spec, std::ssize(ours), [&](int64_t i, int64_t j) { ours[j] = torch[i]; });
}

}  // namespace starring
