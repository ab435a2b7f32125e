#include "worker/checkpointer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace starring {

Checkpointer::Checkpointer(Options options) : options_(std::move(options)) {
  for (int i = 0; i < StateVectorCount(options_.worker->optimizer); ++i) {
    state_names_.emplace_back(StateVectorName(options_.worker->optimizer, i));
  }
}

Checkpointer::~Checkpointer() { Wait(); }

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(Options options) {
  const WorkerOptions& worker = *options.worker;
  if (!worker.checkpoint_dir.empty() && !worker.resume && HasCheckpoint(worker.checkpoint_dir)) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --checkpoint_dir cannot be \"", worker.checkpoint_dir,
                     "\": it holds checkpoints of a run before: add --resume to go on with "
                     "it, or name another folder"));
  }
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(options)));
}

// What decides which samples a step sees and what is done with them: a resumed run must have it alike.
std::map<std::string, std::string> Checkpointer::SharedFlags() const {
  const WorkerOptions& worker = *options_.worker;
  return {{"dataset", worker.dataset.name},
          {"augment", worker.augment ? "crop_flip" : "none"},
          {"global_batch", absl::StrCat(worker.global_batch)},
          {"seed", absl::StrCat(worker.seed)}};
}

// Element ranges of each owner, neighbours joined.
std::vector<std::vector<ElementRange>> Checkpointer::OwnerRanges() const {
  const WorkerOptions& worker = *options_.worker;
  const BucketMap& buckets = *options_.buckets;
  const bool star = worker.sync == Sync::kStar;
  const bool ring = worker.sync == Sync::kRing;
  const int owner_count = star ? static_cast<int>(worker.servers.size()) : ring ? worker.world_size : 1;
  std::vector<std::vector<ElementRange>> owners(owner_count);
  for (int owner = 0; owner < owner_count; ++owner) {
    for (int b = buckets.bucket_count() - 1; b >= 0; --b) {
      std::vector<ElementRange> slice = {buckets.bucket(b)};
      if (star) slice = {buckets.ShardSlice(b, owner, owner_count)};
      if (ring) slice = buckets.RingSlice(b, owner);
      for (const ElementRange& range : slice) {
        if (range.size() == 0) continue;
        if (!owners[owner].empty() && owners[owner].back().end == range.begin) {
          owners[owner].back().end = range.end;
        } else {
          owners[owner].push_back(range);
        }
      }
    }
  }
  return owners;
}

absl::StatusOr<int64_t> Checkpointer::Restore(std::span<float> parameters, std::vector<std::vector<float>>* state) {
  std::map<std::string, int64_t> buffer_sizes;
  for (const NetworkBuffer& buffer : options_.network->buffers()) {
    buffer_sizes[buffer.name] = static_cast<int64_t>(buffer.values.size());
  }
  const std::string& dir = options_.worker->checkpoint_dir;
  ASSIGN_OR_RETURN(std::optional<FoundCheckpoint> found,
                   ReadNewestCheckpoint(dir, options_.network->layout(), state_names_, buffer_sizes));
  if (!found.has_value()) {
    options_.warn(absl::StrCat("no checkpoint in ", dir, " yet: starting from the beginning"));
    return 0;
  }
  for (const std::string& warning : found->warnings) options_.warn(warning);
  Checkpoint& checkpoint = found->checkpoint;
  for (const auto& [flag, value] : SharedFlags()) {
    const auto written = checkpoint.config.find(flag);
    if (written != checkpoint.config.end() && written->second != value) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, " is ", value, ", ", found->folder,
                                                     " was written with ", written->second,
                                                     ": give the same value, or train without --resume"));
    }
  }
  std::copy(checkpoint.parameters.begin(), checkpoint.parameters.end(), parameters.begin());
  for (const NetworkBuffer& buffer : options_.network->buffers()) {
    const std::vector<float>& values = checkpoint.buffers[buffer.name];
    RETURN_IF_ERROR(options_.network->WriteBuffer(buffer, values));
  }
  *state = std::move(checkpoint.state);
  options_.warn(absl::StrCat("resuming ", found->folder));
  return checkpoint.step;
}

absl::Status Checkpointer::Save(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  if (options_.worker->checkpoint_dir.empty()) return absl::OkStatus();
  const bool writes = options_.worker->rank == 0;
  std::vector<std::vector<float>> state(state_names_.size());
  std::vector<std::span<float>> state_spans(state.size());
  if (writes) {
    for (size_t i = 0; i < state.size(); ++i) {
      state[i].resize(parameters.size());
      state_spans[i] = state[i];
    }
  }
  RETURN_IF_ERROR(exchange->GatherOptimizerState(state_spans));
  if (!writes) return absl::OkStatus();
  Wait();
  Checkpoint checkpoint{.step = step,
                        .epoch = step / options_.steps_per_epoch,
                        .config = SharedFlags(),
                        .parameters = {parameters.begin(), parameters.end()},
                        .state_names = state_names_,
                        .state = std::move(state),
                        .owner_ranges = OwnerRanges()};
  for (const NetworkBuffer& buffer : options_.network->buffers()) {
    std::vector<float>& values = checkpoint.buffers[buffer.name];
    values.resize(buffer.values.size());
    RETURN_IF_ERROR(options_.network->ReadBuffer(buffer, values));
  }
  write_ = std::async(std::launch::async,
                      [dir = options_.worker->checkpoint_dir, layout = options_.network->layout(),
                       checkpoint = std::move(checkpoint)] { return WriteCheckpoint(dir, layout, checkpoint); });
  return absl::OkStatus();
}

void Checkpointer::Wait() {
  if (!write_.valid()) return;
  const absl::Status status = write_.get();
  if (status.ok()) return;
  options_.warn(
      absl::StrCat("warning: no checkpoint was written, the last complete one stays: ", std::string(status.message())));
}

}  // namespace starring
