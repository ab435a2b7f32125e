// Weights that a run begins with, from a safetensors file: a checkpoint's model.safetensors, or PyTorch's.
//
// Tensors are found by name, in PyTorch's shapes. The file must have all tensors of the model, and no others, with one
// exception: the last layer's may have another shape, because other data have other classes. It then keeps its own
// first values.
//
// Thread safety: immutable after Load; any thread may call const methods.
#ifndef STARRING_WORKER_CHECKPOINT_WARM_START_H_
#define STARRING_WORKER_CHECKPOINT_WARM_START_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/network.h"
#include "worker/options/deciding_facts.h"

namespace starring {

class WarmStart {
 public:
  // Reads the whole file. NotFound or the system's error if it cannot be read; DataLoss, naming the file, if it is no
  // safetensors file, or larger than kWarmStartBytesMax (common/base/limits.h).
  static absl::StatusOr<WarmStart> Load(const std::string& path);

  // The ranks compare these: the content decides, not the path.
  Facts facts() const { return {{"warm_start", sha256_}}; }

  // Overwrites the first values in `parameters` and the network's buffers. Returns lines that a person must read.
  // InvalidArgument with up to ten tensors that are missing, unknown or of another shape.
  // REQUIRES: `parameters` is as long as the network's layout.
  absl::StatusOr<std::vector<std::string>> Apply(Network* network, std::span<float> parameters) const;

 private:
  WarmStart() = default;

  std::string path_;
  std::string content_;
  std::string sha256_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECKPOINT_WARM_START_H_
