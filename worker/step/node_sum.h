// The sum of a node's leaves (common/job/leaf_shares.h), made while they are computed, one after the other: gradients
// layer by layer, as backward finishes them and while they are in the cache, and a few float64 a leaf besides.
//
// A node of one leaf costs nothing: backward writes where the sum is to be.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_STEP_NODE_SUM_H_
#define STARRING_WORKER_STEP_NODE_SUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/element_range.h"
#include "common/job/leaf_shares.h"
#include "kernels/device.h"

namespace starring {

class NodeSum {
 public:
  struct Options {
    LeafShare share;            // the nodes that are to be summed
    int64_t element_count = 0;  // of a gradient
    size_t value_count = 0;     // float64 of a leaf
    Device* device = nullptr;   // of the gradients: its memory is the host's; outlives the object
  };
  // Allocates a gradient for each sum that may wait: 3 for a node of 8 leaves. ResourceExhausted with their size.
  static absl::StatusOr<NodeSum> Create(const Options& options);

  // The next leaf begins: the `index`-th of a node of `node_size`. `sum` is where the node's gradient is to be, the
  // same for all its leaves. Returns where the leaf's gradient goes.
  std::span<float> BeginLeaf(int index, int node_size, std::span<float> sum);
  // Where the leaf's values go.
  std::span<double> values() { return values_[depth_]; }

  bool is_last_leaf() const { return ends_node_; }
  // The leaf's gradient is complete in `range`. After the last leaf's, so is the node's.
  void AddGradient(ElementRange range);
  // The leaf's values are complete. After the last leaf's, values() has the node's.
  void AddValues();

 private:
  NodeSum() = default;
  // The gradient that waits, or is being computed, at `depth`.
  std::span<float> GradientAt(size_t depth) const;

  int64_t element_count_ = 0;
  std::vector<std::unique_ptr<DeviceBuffer>> waiting_;  // by depth, from 1 on; at depth 0 is the node's own memory
  std::vector<std::vector<double>> values_;             // by depth
  std::span<float> sum_;
  size_t depth_ = 0;  // of the leaf
  int ending_ = 0;    // the sums that are added to it
  bool ends_node_ = false;
};

// Adds the values of all nodes of a job as its tree does. `values` has as many for each contributor, in the order of
// `contributors`, which are ContributorsOf(DealLeavesEvenly(leaf_count, any number of workers)).
std::vector<double> SumOfNodes(std::span<const Contributor> contributors, int leaf_count,
                               std::span<const double> values);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_NODE_SUM_H_
