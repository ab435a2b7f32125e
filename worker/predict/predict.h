// The answers of a trained model: `worker --evaluate` and `worker --predict`.
//
// The model, its input's shape and normalisation, and the names of its classes are a checkpoint's. So no flag of the
// training is needed again. One process computes, in batches of kPredictionBatch samples in the order of the file, so
// that the loss is that of an evaluation in training with --micro_batches.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_PREDICT_PREDICT_H_
#define STARRING_WORKER_PREDICT_PREDICT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/data/dataset.h"
#include "worker/model/quality.h"

namespace starring {

inline constexpr int64_t kPredictionBatch = 256;

struct PredictOptions {
  // A folder of checkpoints, of which the newest whole one is taken, or one of them: DIR/step-...
  std::string checkpoint;
  const TrainAndTest* data = nullptr;  // its test set is asked about; outlives the call
  bool is_split = false;               // the test set is a part of the training's data (--test_fraction)
  std::string out;                     // of PredictionFile; empty: no file is written
  Device* device = nullptr;            // outlives the call
  std::function<bool()> stop = [] { return false; };
};

struct Evaluation {
  std::string folder;  // of the checkpoint
  std::string note;    // what a person should know; may be empty
  int64_t samples = 0;
  bool has_labels = true;  // else `quality` says nothing
  Quality quality;
  std::vector<std::string> class_names;  // the model's; empty: numbers
};

// The targets that a loss compares with.
TargetType TargetOf(LossKind loss);

// The input and the targets of the model of the newest readable checkpoint.
struct ModelInput {
  int64_t columns = 0;  // 0: images, or there is no checkpoint
  TargetType target = TargetType::kClass;
};
ModelInput InputOf(const std::string& checkpoint);

// A label means the class of that name, whatever numbers the classes of `data` have. A model of bits takes data with
// two classes, too, if it was trained with such data.
//
// NotFound if there is no checkpoint; InvalidArgument if data and model do not fit together, with both shapes or the
// label; for another split; for outputs that are not finite, with the sample; or as ReadCheckpointHead. DataLoss if
// every checkpoint is damaged. NotWrittenError for `out`. Cancelled if `stop` says so, after which there is no `out`.
absl::StatusOr<Evaluation> Predict(const PredictOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_PREDICT_PREDICT_H_
