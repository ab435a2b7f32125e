#include "worker/model/parameter_init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/arithmetic/philox.h"
#include "common/check.h"
#include "common/layout.h"

namespace starring {
namespace {

int64_t FanIn(const GraphLayer& layer) {
  return layer.kind == LayerKind::kConv2d ? layer.kernel * layer.kernel * layer.in.channels : layer.in.elements();
}

void FillUniform(const RandomKey& key, float bound, std::span<float> values) {
  PhiloxWords words{};
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 4 == 0) words = key.At(i / 4);
    values[i] = (2 * UnitFloat(words[i % 4]) - 1) * bound;
  }
}

}  // namespace

void InitializeParameters(const NetworkGraph& graph, uint64_t seed, std::span<float> parameters) {
  CHECK_EQ(std::ssize(parameters), graph.layout().element_count());
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  std::vector<float> in_torch_order;
  for (const GraphLayer& layer : graph.layers()) {
    for (int t = layer.first_tensor; t < layer.first_tensor + layer.tensor_count; ++t) {
      const Tensor& tensor = graph.layout().tensors()[t];
      const std::span<float> values = parameters.subspan(tensor.range.begin, tensor.range.size());
      if (layer.kind == LayerKind::kBatchNorm) {
        std::fill(values.begin(), values.end(), t == layer.first_tensor ? 1.0f : 0.0f);
        continue;
      }
      const RandomKey key{.seed = seed, .purpose = RandomPurpose::kInit, .stream = static_cast<uint32_t>(t)};
      in_torch_order.resize(values.size());
      FillUniform(key, static_cast<float>(1 / std::sqrt(static_cast<double>(FanIn(layer)))), in_torch_order);
      FromTorchOrder(tensor.spec, in_torch_order, values);
    }
  }
}

}  // namespace starring
