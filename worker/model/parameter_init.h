// The first values of a network's parameters: PyTorch's default initialisers in distribution.
//
// Convolution and dense: weight and bias uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)), fan_in the inputs of one output
// (for the weight that is kaiming_uniform(a = sqrt 5): He et al., 2015, equation 10 with PyTorch's gain). Batch norm:
// weight 1, bias 0. Every number is drawn by Philox from (seed, kInit, the tensor's number, the element's place in
// PyTorch's memory order), so that it depends neither on our memory order nor on how the work is split.
#ifndef STARRING_WORKER_MODEL_PARAMETER_INIT_H_
#define STARRING_WORKER_MODEL_PARAMETER_INIT_H_

#include <cstdint>
#include <span>

#include "worker/model/network_graph.h"

namespace starring {

// Fills the parameter vector (host memory), gaps with 0. REQUIRES: it is as long as the layout.
void InitializeParameters(const NetworkGraph& graph, uint64_t seed, std::span<float> parameters);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_PARAMETER_INIT_H_
