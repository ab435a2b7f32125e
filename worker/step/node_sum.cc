#include "worker/step/node_sum.h"

#include <algorithm>
#include <array>

#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// All sums that end with a leaf are added block by block, so that what one of them writes is in the first-level cache
// when the next one reads it.
constexpr int64_t kBlockElements = 2048;

// Adds the nodes of a part of the tree, from left to right.
class NodeWalk {
 public:
  NodeWalk(std::span<const Contributor> contributors, std::span<const double> values)
      : contributors_(contributors), values_(values), value_count_(values.size() / contributors.size()) {}

  std::vector<double> Sum(LeafRange leaves) {
    if (contributors_[next_].leaves == leaves) {
      const auto mine = values_.subspan(next_++ * value_count_, value_count_);
      return {mine.begin(), mine.end()};
    }
    // The recursion ends: contributors are nodes of this tree, so each of its branches meets one.
    const int middle = TreeMiddle(leaves);
    // The left half comes first, because `next_` walks the contributors in order.
    std::vector<double> sum = Sum({leaves.begin, middle});
    const std::vector<double> right = Sum({middle, leaves.end});
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
    return sum;
  }

 private:
  const std::span<const Contributor> contributors_;
  const std::span<const double> values_;
  const size_t value_count_;
  size_t next_ = 0;
};

}  // namespace

std::vector<double> SumOfNodes(std::span<const Contributor> contributors, int leaf_count,
                               std::span<const double> values) {
  CHECK(!contributors.empty() && values.size() % contributors.size() == 0) << values.size();
  return NodeWalk(contributors, values).Sum({0, leaf_count});
}

absl::StatusOr<NodeSum> NodeSum::Create(const Options& options) {
  NodeSum made;
  made.element_count_ = options.element_count;
  int waiting_max = 0;
  for (const LeafRange& node : options.share) {
    for (int i = 0; i < node.size(); ++i) waiting_max = std::max(waiting_max, SumsWaiting(i));
  }
  for (int i = 0; i < waiting_max; ++i) {
    ASSIGN_OR_RETURN(made.waiting_.emplace_back(),
                     options.device->Allocate(options.element_count * static_cast<int64_t>(sizeof(float))),
                     "a gradient for --micro_batches");
  }
  made.values_.assign(static_cast<size_t>(waiting_max) + 1, std::vector<double>(options.value_count));
  return made;
}

std::span<float> NodeSum::GradientAt(size_t depth) const {
  return depth == 0 ? sum_ : std::span(waiting_[depth - 1]->floats(), static_cast<size_t>(element_count_));
}

std::span<float> NodeSum::BeginLeaf(int index, int node_size, std::span<float> sum) {
  CHECK(0 <= index && index < node_size) << index;
  CHECK_EQ(std::ssize(sum), element_count_);
  sum_ = sum;
  depth_ = static_cast<size_t>(SumsWaiting(index));
  ending_ = SumsEnding(index, node_size);
  ends_node_ = index + 1 == node_size;
  return GradientAt(depth_);
}

void NodeSum::AddGradient(ElementRange range) {
  for (int64_t begin = range.begin; ending_ > 0 && begin < range.end; begin += kBlockElements) {
    const auto count = static_cast<size_t>(std::min(kBlockElements, range.end - begin));
    // `ending_` stays: AddGradient is called for each layer, and AddValues ends the leaf.
    for (size_t depth = depth_; depth > depth_ - static_cast<size_t>(ending_); --depth) {
      const std::span<float> left = GradientAt(depth - 1).subspan(static_cast<size_t>(begin), count);
      const std::span<float> right = GradientAt(depth).subspan(static_cast<size_t>(begin), count);
      const std::array<const std::byte*, 2> both = {std::as_bytes(left).data(), std::as_bytes(right).data()};
      SumInOrder(both, left);
    }
  }
}

void NodeSum::AddValues() {
  for (; ending_ > 0; --ending_, --depth_) {
    for (size_t i = 0; i < values_[depth_].size(); ++i) values_[depth_ - 1][i] += values_[depth_][i];
  }
}

}  // namespace starring
