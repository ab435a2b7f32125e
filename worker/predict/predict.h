// The answers of a trained model: `worker --evaluate` and `worker --predict`.
//
// The model, its input's shape and normalisation, and the names of its classes are a checkpoint's. So no flag of the
// training is needed again. The samples are computed in blocks of kPredictionBatch, in the order of the file. Ranks
// that evaluate together divide the blocks among them, and every rank adds the sums of all blocks in that order. So the
// result has the same bits for any number of ranks, and is that of an evaluation in training with --micro_batches.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_PREDICT_PREDICT_H_
#define STARRING_WORKER_PREDICT_PREDICT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/watch/progress_state.h"
#include "kernels/device.h"
#include "worker/data/dataset.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/model/quality.h"
#include "worker/options/deciding_facts.h"

namespace starring {

inline constexpr int64_t kPredictionBatch = 256;

// The ranks that evaluate one checkpoint together.
struct EvaluatingRanks {
  // Begins and ends with the call; outlives it. Null: this process is alone. It carries sums, and no parameters.
  GradientExchange* exchange = nullptr;
  JobSpec job;                    // without layout and buckets
  int bucket_world_size = 1;      // BucketMap::Options::world_size
  std::span<float> start_values;  // for GradientExchange::Start, kStartValues of them; live as long as the exchange
  // Facts about this rank's device that must be the same on all ranks; null: there are none. Called after every batch
  // size has been planned for.
  std::function<absl::StatusOr<Facts>()> device_facts;

  static constexpr int64_t kStartValues = 16;
};

struct PredictOptions {
  // A folder of checkpoints, of which the newest whole one is taken, or one of them: DIR/step-...
  std::string checkpoint;
  const TrainAndTest* data = nullptr;   // its test set is asked about; outlives the call
  bool is_split = false;                // the test set is a part of the training's data (--test_fraction)
  std::string out;                      // of PredictionFile; empty: no file is written, as with several ranks
  Device* device = nullptr;             // outlives the call
  Element element = Element::kFloat32;  // of activations
  EvaluatingRanks ranks;
  ProgressState* state = nullptr;  // told what this rank is doing, for stall reports; may be null
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
//
// Collective: every rank gets the same evaluation. InvalidArgument, naming the rank that differs, if the ranks have
// read other checkpoints or test sets, or compute with other arithmetic. After an error the other ranks are told.
absl::StatusOr<Evaluation> Predict(const PredictOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_PREDICT_PREDICT_H_
