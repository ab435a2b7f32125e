// Checkpoints: folders that hold a whole state of training, or are not there at all.
//
//   DIR/step-000000123/manifest.json          proto/starring/v1/checkpoint.proto: step, flags, layout, CRC of each file
//                     /model.safetensors      PyTorch's names, shapes and memory order: load_state_dict takes it
//                     /optimizer.safetensors  state vectors, whole, "conv1.weight.momentum_buffer", likewise
//
// A folder is written under another name, flushed to the disk and renamed, so a crash or a full disk at any moment
// leaves the complete ones as they were. What a reader takes has a manifest, every file of it with its size and CRC,
// and every tensor of the layout with its shape; the number of owners that wrote it does not matter.
//
// Thread safety: functions may run at the same time on different DIRs.
#ifndef STARRING_COMMON_CHECKPOINT_H_
#define STARRING_COMMON_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"

namespace starring {

struct Checkpoint {
  int64_t step = 0;                                     // the next one
  int64_t epoch = 0;                                    // completed
  std::map<std::string, std::string> config;            // flags that a resumed run must share
  std::vector<float> parameters;                        // layout.element_count(), our memory order
  std::vector<std::string> state_names;                 // of PyTorch: "momentum_buffer"
  std::vector<std::vector<float>> state;                // by state_names, each layout.element_count()
  std::map<std::string, std::vector<float>> buffers;    // "bn1.running_mean", saved but not trained
  std::vector<std::vector<ElementRange>> owner_ranges;  // by owner; for people, a reader ignores it
};

// Writes DIR/step-..., replacing one of the same step, then deletes all but the newest limits.h kCheckpointsKept.
// ResourceExhausted when the disk is full; DIR's complete checkpoints stay and no part of the new one is left.
absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint);

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::string folder;
  std::vector<std::string> warnings;  // about newer folders that are damaged and were passed over
};
// The newest complete checkpoint of DIR; nullopt if DIR has none or does not exist. `state_names` and `buffer_sizes`
// say what the run needs. InvalidArgument when a complete one does not fit the layout, the optimizer or the buffers,
// naming the tensor and both values.
absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(const std::string& dir, const Layout& layout,
                                                                    const std::vector<std::string>& state_names,
                                                                    const std::map<std::string, int64_t>& buffer_sizes);

// True if DIR has a folder that ReadNewestCheckpoint would look at.
bool HasCheckpoint(const std::string& dir);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_H_
