// What can be said about a layer file before the shape of an image is known.
#ifndef STARRING_WORKER_MODEL_LAYER_CHECK_H_
#define STARRING_WORKER_MODEL_LAYER_CHECK_H_

#include "absl/status/status.h"
#include "worker/model/layer_file.h"

namespace starring {

// Names, inputs, kinds and the ranges of numbers. The first offence in file order comes back as a LayerError.
// After OK, every input is "input" or the name of a layer above, and every layer but the last is read by another.
absl::Status CheckLayers(const LayerFile& file);

}  // namespace starring

#endif  // STARRING_WORKER_MODEL_LAYER_CHECK_H_
