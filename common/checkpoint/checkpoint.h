// Checkpoints: folders that hold a whole state of training, or are not there at all.
//
//   DIR/step-000000123/manifest.json          proto/starring/v1/checkpoint.proto: step, flags, layout, CRC of each file
//                     /model.safetensors      PyTorch's names, shapes and memory order: load_state_dict takes it
//                     /optimizer.safetensors  state vectors, whole, "conv1.weight.momentum_buffer", likewise
//
// A folder is written under another name, flushed to the disk and renamed, so a crash or a full disk at any moment
// leaves the complete ones as they were. What a reader takes has a manifest, every file of it with its size and CRC,
// and exactly the tensors that the run needs, each with its type and shape; the number of owners that wrote it does not
// matter, nor does the way our memory was laid out.
//
// Thread safety: functions may run at the same time on different DIRs. One process at a time writes to a DIR.
#ifndef STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_
#define STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_

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

// Writes DIR/step-..., replacing one of the same step, then deletes all but the newest limits.h kCheckpointsKept up to
// that step. PyTorch's batch norm also saves how many batches it has seen: NAME.num_batches_tracked is written as
// `step` beside each NAME.running_mean. ResourceExhausted when the disk is full; DIR's complete checkpoints stay and no
// part of the new one is left. Needs the memory of the largest tensor beside the checkpoint. REQUIRES: vectors as long
// as said above.
absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint);

// kCheckOnly: the optimizer's file must be whole and fit the run, as with kRead, but its vectors stay empty. For ranks
// that get the state from another one.
enum class OptimizerState { kRead, kCheckOnly };

// The checkpoint in `folder` (DIR/step-...). `state_names` and `buffer_sizes` say what the run needs beside the layout.
// DataLoss when a file is missing or not what the manifest says, naming file, expected and found. InvalidArgument when
// the checkpoint is complete but of another model or optimizer, naming the tensor and both values.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const Layout& layout,
                                          const std::vector<std::string>& state_names,
                                          const std::map<std::string, int64_t>& buffer_sizes,
                                          OptimizerState wanted = OptimizerState::kRead);

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::string folder;
  std::vector<std::string> warnings;  // about newer folders that are damaged and were passed over
};
// The newest complete checkpoint of DIR; nullopt if DIR has none or does not exist. DataLoss if it has some and all are
// damaged: to begin again is for a person to decide. InvalidArgument as ReadCheckpoint.
absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(const std::string& dir, const Layout& layout,
                                                                    const std::vector<std::string>& state_names,
                                                                    const std::map<std::string, int64_t>& buffer_sizes,
                                                                    OptimizerState wanted = OptimizerState::kRead);

// True if DIR has a folder that ReadNewestCheckpoint would look at.
bool HasCheckpoint(const std::string& dir);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_
