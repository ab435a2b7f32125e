// Checkpoints: folders that hold the whole state of a training run, or do not exist at all.
//
//   DIR/step-000000123/manifest.json          proto/starring/v1/checkpoint.proto: step, flags, layout, CRC of each file
//                     /model.safetensors      PyTorch's names, shapes and memory order: load_state_dict takes the file
//                     /optimizer.safetensors  whole state vectors: "conv1.weight.momentum_buffer"
//   DIR/.writing-step-000000123               unfinished, or left by a crash; the next PublishFolder removes it
//   DIR/.replaced-step-000000123              complete, while another folder of the same step takes its place; after a
//                                             crash in between it counts
//   DIR/.lock                                 locked by the process that writes
//
// A folder is written under another name, flushed to the disk and renamed, so a crash or a full disk at any moment
// leaves the complete folders as they were. A reader takes a folder that has a manifest, each of the manifest's files
// with its size and CRC, and exactly the tensors that the run needs, each with its type and shape. The number of owners
// that wrote the checkpoint does not matter, nor does the layout of their memory.
//
// Thread safety: functions may run at the same time on different DIRs. One process at a time writes to a DIR, which
// FolderLock ensures; any number may list and read.
#ifndef STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_
#define STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/job/layout.h"

namespace starring {

// The version of the manifest. proto/starring/v1/checkpoint.proto says what each version has.
inline constexpr int kCheckpointVersion = 2;

// The model of a checkpoint, known without its tensors: proto/starring/v1/checkpoint.proto.
struct TrainedModel {
  std::string layer_file;  // the text
  int64_t height = 0, width = 0, channels = 0;
  bool takes_numbers = false;
  int64_t outputs = 0;
  std::vector<float> mean, deviation;  // by channel
  // Left out of a checkpoint above kManifestNamesBytesMax. Text that is not UTF-8 is replaced.
  std::vector<std::string> class_names;
};
inline constexpr size_t kManifestNamesBytesMax = 4 << 20;

// The epoch with the lowest test loss so far.
struct BestEpoch {
  int64_t epoch = 0;  // epochs completed then; 0: there was no evaluation
  double test_loss = 0;
};

struct Checkpoint {
  int64_t step = 0;                           // the next step of the run
  int64_t epoch = 0;                          // number of completed epochs
  std::map<std::string, std::string> config;  // what decided the numbers: flags and facts
  int version = kCheckpointVersion;           // of the manifest
  bool finished = false;                      // the run had no step left
  TrainedModel model;
  BestEpoch best;
  int world_size = 0;                                   // of the run that wrote it; 0: unknown
  int64_t chunk_bytes = 0;                              // ChunkBytesFor(world_size) of that run's build; 0: unknown
  int64_t bucket_bytes = 0;                             // that --bucket_bytes=auto has chosen; 0: none
  std::vector<float> parameters;                        // layout.element_count(), our memory order
  std::vector<std::string> state_names;                 // PyTorch's names: "momentum_buffer"
  std::vector<std::vector<float>> state;                // by state_names, each layout.element_count()
  std::map<std::string, std::vector<float>> buffers;    // "bn1.running_mean", saved but not trained
  std::vector<std::vector<ElementRange>> owner_ranges;  // by owner; for people: a reader ignores them
  bool is_only = false;  // WriteCheckpoint removes all others, of later steps too; not a part of the file
};

// Writes DIR/step-..., replacing a folder of the same step, then deletes all but the newest limits.h kCheckpointsKept
// up to that step, or all others with is_only. PyTorch's batch norm also saves how many batches it has seen:
// NAME.num_batches_tracked is written as `step` next to each NAME.running_mean. ResourceExhausted when the disk is
// full: DIR's complete checkpoints stay, and no part of the new one is left. Needs memory for one more copy of the
// largest tensor. REQUIRES: the vectors have the lengths given above.
absl::Status WriteCheckpoint(const std::string& dir, const Layout& layout, const Checkpoint& checkpoint);

// kCheckOnly: the optimizer's file must be whole and fit the run, as with kRead, but its vectors stay empty. For ranks
// that get the state from rank 0. kIgnore: the file is not looked at, and may be missing.
enum class OptimizerState { kRead, kCheckOnly, kIgnore };

// Whether a run can go on from the checkpoint in `folder`, of which all but the tensors is given.
using CheckpointFits = std::function<absl::Status(const Checkpoint& head, const std::string& folder)>;

// The checkpoint in `folder` (DIR/step-...). `state_names` and `buffer_sizes` say what the run needs besides the
// layout. DataLoss, naming file, expected and found values, when a file is missing or differs from the manifest.
// InvalidArgument when the checkpoint is complete but belongs to another model or optimizer, naming the tensor and both
// values, or is of a later version. Calls `fits`, if there is one, before it looks at tensors, and returns its error.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const Layout& layout,
                                          const std::vector<std::string>& state_names,
                                          const std::map<std::string, int64_t>& buffer_sizes,
                                          OptimizerState wanted = OptimizerState::kRead,
                                          const CheckpointFits& fits = nullptr);

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::string folder;
  std::vector<std::string> warnings;  // one for each newer folder that is damaged and was passed over
};
// The newest complete checkpoint of DIR; nullopt if DIR has none or does not exist. DataLoss if DIR has checkpoints
// and all are damaged: a person must decide to begin again. InvalidArgument as ReadCheckpoint.
absl::StatusOr<std::optional<FoundCheckpoint>> ReadNewestCheckpoint(const std::string& dir, const Layout& layout,
                                                                    const std::vector<std::string>& state_names,
                                                                    const std::map<std::string, int64_t>& buffer_sizes,
                                                                    OptimizerState wanted = OptimizerState::kRead,
                                                                    const CheckpointFits& fits = nullptr);

// All of the checkpoint in `folder` but its tensors: only the manifest is read. DataLoss as ReadCheckpoint, and if a
// size of the model is below 1, or means and deviations are not one for each channel, finite, and deviations normal and
// above 0. InvalidArgument if the checkpoint is of a later version, or of one that had no model.
absl::StatusOr<Checkpoint> ReadCheckpointHead(const std::string& folder);

// The step of the checkpoint in `folder`, whatever the folder's name is; nullopt if it holds none. Looks at the
// manifest only.
std::optional<int64_t> StepOfCheckpoint(const std::string& folder);

// True if DIR has a folder that ReadNewestCheckpoint would look at.
[[nodiscard]] bool HasCheckpoint(const std::string& dir);

// The functions below know folders, and nothing of the files in them.

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
};

// Makes `dir` and the folders above it that do not exist. A crash of the machine loses none of them.
absl::Status CreateFolders(const std::string& dir);

// Keeps other jobs from publishing in a directory while the lock lives. The kernel releases the lock when the process
// ends, even by a crash.
class FolderLock {
 public:
  // Makes `dir` if it does not exist. FailedPrecondition when another process still has the lock after `patience`, and
  // never for a folder that is unfit.
  // `file`: the name of the lock, a file in `dir`.
  static absl::StatusOr<FolderLock> Take(const std::string& dir, absl::Duration patience,
                                         const std::string& file = ".lock");
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  // Writes `holder`, the name of this lock's owner, into the lock's file for HolderOf. A write that fails is ignored.
  void Sign(const std::string& holder) const;
  // The name that the last owner wrote, as printable text; empty if there is none, or the file cannot be read. That
  // owner may have ended: only a Take that fails shows that it lives.
  static std::string HolderOf(const std::string& dir, const std::string& file = ".lock");
  // False if the file system has no locks: then this object keeps no process out.
  [[nodiscard]] bool is_held() const { return is_held_; }

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
  bool is_held_ = false;
};

// A new or renamed entry of a folder survives a crash of the machine only after this.
absl::Status FlushFolder(const std::string& path);

// Newest first; empty if `dir` does not exist.
std::vector<CheckpointFolder> ListCheckpointFolders(const std::string& dir);

// Calls `fill` with the path of an empty folder. When `fill` has written files there, each flushed to the disk, the
// folder becomes DIR/step-..., in place of a folder of the same step. On an error of `fill` or of the system, `dir` has
// the complete folders that it had before and nothing else.
absl::Status PublishFolder(const std::string& dir, int64_t step,
                           absl::FunctionRef<absl::Status(const std::string& folder)> fill);

// Removes all but the newest `kept` of the folders up to `newest_step`, the one just published. Folders of later steps
// stay: a resumed run passed them over because they are damaged, and they must not push out whole ones.
// REQUIRES: kept >= 1.
void RemoveOldFolders(const std::string& dir, int64_t newest_step, int kept);
// Removes all folders but that of `step`.
void RemoveOtherFolders(const std::string& dir, int64_t step);

}  // namespace starring

#endif  // STARRING_COMMON_CHECKPOINT_CHECKPOINT_H_
