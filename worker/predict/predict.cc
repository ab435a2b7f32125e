#include "worker/predict/predict.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/element_range.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/checkpoint/checkpoint.h"
#include "common/host/log.h"
#include "common/job/bucket_map.h"
#include "common/job/layout.h"
#include "common/security/sha256.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/model/network_graph.h"
#include "worker/model/quality.h"
#include "worker/predict/prediction_file.h"

namespace starring {
namespace {

// A model with its trained parameters.
struct Model {
  std::string folder;
  Checkpoint head;
  std::unique_ptr<Network> network;
  std::unique_ptr<DeviceBuffer> parameters;
  std::string sha256;  // of all that decides the outputs, besides the arithmetic; empty for a process that is alone
};

absl::Status CheckFits(const TrainedModel& model, const Dataset& data, const std::string& folder) {
  const auto shape = [](int64_t height, int64_t width, int64_t channels, bool numbers) {
    return absl::StrCat(height, " x ", width, " x ", channels, numbers ? " numbers" : " pixels");
  };
  const std::string wanted = shape(model.height, model.width, model.channels, model.takes_numbers);
  const std::string given = shape(data.height, data.width, data.channels, data.type == FieldType::kNumbers);
  if (wanted != given) {
    return absl::InvalidArgumentError(absl::StrCat("the data have samples of ", given, ", the model in ", folder,
                                                   " takes ", wanted,
                                                   ": give the flags of the data as for its training"));
  }
  return absl::OkStatus();
}

std::string DescribeTarget(TargetType type, int64_t values) {
  if (type == TargetType::kClass) return "classes";
  return absl::StrCat(values, type == TargetType::kNumbers ? " numbers" : " bits");
}

// Whether the model was trained with two classes as one bit, and the data have classes.
bool ComparesBitsWithClasses(const Model& model, const Dataset& data) {
  return model.network->loss() == LossKind::kBce && model.network->outputs() == 1 && data.target == TargetType::kClass;
}

absl::Status CheckTargets(const Model& model, const Dataset& data) {
  if (!data.has_labels || ComparesBitsWithClasses(model, data)) return absl::OkStatus();
  const TargetType wanted = TargetOf(model.network->loss());
  const bool fits =
      wanted == data.target && (wanted == TargetType::kClass || data.target_values == model.network->outputs());
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the data have labels that are ", DescribeTarget(data.target, data.target_values), ", the model in ",
                   model.folder, " compares with ", DescribeTarget(wanted, model.network->outputs()),
                   ": give the labels as for its training, or leave them out to predict"));
}

// By class of the data that class of the model.
absl::StatusOr<std::vector<int32_t>> ModelClasses(const Model& model, const TrainAndTest& data) {
  const TrainedModel& facts = model.head.model;
  if (data.test.target != TargetType::kClass) return std::vector<int32_t>();
  // A bit is one of two classes.
  const int32_t class_count = ComparesBitsWithClasses(model, data.test) ? 2 : facts.outputs;
  // Numbers are compared by value: a file may have -1.0 where another has -1.
  const auto name_of = [](const std::vector<std::string>& names, int64_t c) {
    if (names.empty()) return absl::StrCat(c);
    const std::string& name = names[static_cast<size_t>(c)];
    double value = 0;
    return absl::SimpleAtod(name, &value) ? absl::StrCat(value) : name;
  };
  std::map<std::string, int32_t> known;
  for (int32_t c = 0; c < class_count; ++c) {
    // A class without a sample has no name.
    if (facts.class_names.empty() || c < std::ssize(facts.class_names)) known[name_of(facts.class_names, c)] = c;
  }
  std::vector<int32_t> classes(static_cast<size_t>(data.test.classes));
  // The loop goes over labels and not classes: a class without a sample in the test set need not be known.
  for (const uint16_t label : data.test.has_labels ? data.test.labels : std::vector<uint16_t>()) {
    const std::string name = name_of(data.class_names, label);
    const auto found = known.find(name);
    if (found == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the data have the label ", name, ", which the model in ",
                                                     model.folder, " with its ", class_count,
                                                     " classes does not know: give the flags of the data as for its "
                                                     "training"));
    }
    classes[label] = found->second;
  }
  return classes;
}

// Whether the data are those of the training.
absl::Status CheckData(const Model& model, const PredictOptions& options, std::string* note) {
  // A file of samples alone has no training set to compare.
  if (options.data->train.count == 0) return absl::OkStatus();
  for (const auto& [name, value] : DatasetFacts(*options.data)) {
    const auto written = model.head.config.find(name);
    if (written == model.head.config.end() || written->second == value) continue;
    if (options.is_split) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is ", value, ", the model in ", model.folder, " was trained with ", written->second,
          ": it may have been trained on samples of this test set; give --test_fraction and --split_seed as then"));
    }
    *note = absl::StrCat("these are not the data of the training: ", name, " is ", value, ", it was ", written->second);
  }
  return absl::OkStatus();
}

// A digest of all that decides the outputs, besides the arithmetic.
std::string DigestOf(const TrainedModel& facts, const Checkpoint& checkpoint) {
  Sha256 digest;
  // The layer file's length precedes it, so that no byte of it can pass for a class name.
  digest.Update(absl::StrCat(facts.height, ",", facts.width, ",", facts.channels, ",", facts.takes_numbers, ",",
                             facts.outputs, ",", facts.layer_file.size(), ",", facts.layer_file));
  digest.Update(absl::StrJoin(facts.class_names, absl::string_view("\0", 1)));
  for (const std::vector<float>* values : {&facts.mean, &facts.deviation, &checkpoint.parameters}) {
    digest.Update(std::as_bytes(std::span(*values)));
  }
  for (const auto& [name, values] : checkpoint.buffers) digest.Update(name).Update(std::as_bytes(std::span(values)));
  return digest.HexDigest();
}

// DataLoss if the checkpoint is damaged.
absl::StatusOr<Model> Load(const std::string& folder, const PredictOptions& options) {
  Model model{.folder = folder};
  // The head has the layer file. ReadCheckpoint needs the layout of the network that is made from it.
  ASSIGN_OR_RETURN(model.head, ReadCheckpointHead(folder));
  const TrainedModel& facts = model.head.model;
  RETURN_IF_ERROR(CheckFits(facts, options.data->test, folder));
  ASSIGN_OR_RETURN(const LayerFile layers, LayerFile::Parse(facts.layer_file, absl::StrCat(folder, ": layer file")));
  ASSIGN_OR_RETURN(model.network, Network::Create(layers,
                                                  {.height = facts.height,
                                                   .width = facts.width,
                                                   .channels = facts.channels,
                                                   .outputs = facts.outputs,
                                                   .batch_max = 1,
                                                   .evaluation_batch_max = kPredictionBatch,
                                                   .element = options.element},
                                                  options.device));
  std::map<std::string, int64_t> buffer_sizes;
  for (const NetworkBuffer& buffer : model.network->buffers()) buffer_sizes[buffer.name] = std::ssize(buffer.values);
  ASSIGN_OR_RETURN(Checkpoint checkpoint, ReadCheckpoint(folder, model.network->layout(), /*state_names=*/{},
                                                         buffer_sizes, OptimizerState::kIgnore));
  for (const NetworkBuffer& buffer : model.network->buffers()) {
    RETURN_IF_ERROR(model.network->WriteBuffer(buffer, checkpoint.buffers[buffer.name]));
  }
  const auto bytes = static_cast<int64_t>(checkpoint.parameters.size() * sizeof(float));
  ASSIGN_OR_RETURN(model.parameters, options.device->Allocate(bytes), "the parameters");
  options.device->CopyToDevice(checkpoint.parameters.data(), model.parameters->data(), bytes);
  RETURN_IF_ERROR(options.device->Synchronize());
  // A process that is alone has no other to compare with, and saves a pass over the parameters.
  if (options.ranks.exchange != nullptr) model.sha256 = DigestOf(facts, checkpoint);
  return model;
}

// The folders to try, the newest first.
std::vector<std::string> Candidates(const std::string& place) {
  std::error_code ignored;
  if (std::filesystem::exists(place + "/manifest.json", ignored)) return {place};
  std::vector<std::string> folders;
  for (const CheckpointFolder& folder : ListCheckpointFolders(place)) folders.push_back(folder.path);
  return folders;
}

absl::StatusOr<Model> LoadNewest(const PredictOptions& options) {
  const std::string& place = options.checkpoint;
  absl::Status damage = absl::NotFoundError(
      absl::StrCat(place, " holds no checkpoint: give a run's --checkpoint_dir, or one of the folders in it"));
  for (const std::string& folder : Candidates(place)) {
    absl::StatusOr<Model> model = Load(folder, options);
    // Only damage leads to an older checkpoint. Another error, as data of another shape, would come with that one too.
    if (!absl::IsDataLoss(model.status())) return model;
    damage = model.status();
    Log(absl::StrCat("passed over: ", damage.message()), LogLevel::kWarning);
  }
  return damage;
}

void Sigmoid(std::span<float> outputs) {
  for (float& output : outputs) {
    // The exponent is never positive, so that a large output of either sign does not overflow.
    const float power = std::exp(-std::fabs(output));
    output = output >= 0 ? 1 / (1 + power) : power / (1 + power);
  }
}

// The probabilities of (rows, classes) outputs, in place.
void Softmax(std::span<float> outputs, int64_t classes) {
  for (; !outputs.empty(); outputs = outputs.subspan(static_cast<size_t>(classes))) {
    const std::span<float> row = outputs.first(static_cast<size_t>(classes));
    // With the largest output subtracted, the exponents are 0 or below, and the sum is at least 1.
    const float largest = *std::ranges::max_element(row);
    double sum = 0;
    for (float& output : row) sum += output = std::exp(output - largest);
    for (float& output : row) output = static_cast<float>(output / sum);
  }
}

absl::Status CheckFinite(std::span<const float> row, int64_t sample) {
  for (const float output : row) {
    if (std::isfinite(output)) continue;
    return absl::InvalidArgumentError(absl::StrCat("an output of the model for sample ", sample, " is ", output,
                                                   ", expected finite numbers: look at the values of that sample"));
  }
  return absl::OkStatus();
}

// One batch in the device's memory, and what its outputs are compared with.
class Input {
 public:
  static absl::StatusOr<Input> Create(const PredictOptions& options, const Dataset& data, const Model& model,
                                      std::vector<int32_t> model_classes) {
    Device* const device = options.device;
    Input input(options, model, std::move(model_classes));
    const int64_t values = kPredictionBatch * data.image_values();
    if (options.element != Element::kFloat32) {
      ASSIGN_OR_RETURN(input.rounded_, device->Allocate(values * BytesOf(options.element)), "a batch");
    }
    ASSIGN_OR_RETURN(input.images_, device->Allocate(values * static_cast<int64_t>(sizeof(float))), "a batch");
    // A label is an int32, which has the bytes of a float.
    ASSIGN_OR_RETURN(input.targets_, device->Allocate(kPredictionBatch * kFloatBytes *
                                                      (input.loss_ == LossKind::kSoftmax ? 1 : input.outputs_)));
    return input;
  }

  // Overwrites the batch before, whose evaluation has ended.
  NetworkInput Copy(const Batch& batch) {
    device_->CopyToDevice(batch.images.data(), images_->data(), static_cast<int64_t>(batch.images.size_bytes()));
    ConstElements images = images_->floats();
    if (rounded_ != nullptr) {
      const Elements rounded(element_, rounded_->data());
      device_->Cast(images_->floats(), rounded, std::ssize(batch.images));
      images = rounded;
    }
    labels_.clear();
    values_.assign(batch.targets.begin(), batch.targets.end());
    for (const int32_t label : batch.labels) labels_.push_back(model_classes_[static_cast<size_t>(label)]);
    if (loss_ != LossKind::kSoftmax && values_.empty()) {
      // A class is a bit, and without labels any number will do.
      values_.resize(batch.labels.size() * static_cast<size_t>(outputs_));
      if (outputs_ == 1) std::ranges::copy(labels_, values_.begin());
    }
    const bool are_labels = loss_ == LossKind::kSoftmax;
    const void* const from = are_labels ? static_cast<const void*>(labels_.data()) : values_.data();
    const size_t bytes = are_labels ? std::span(labels_).size_bytes() : std::span(values_).size_bytes();
    device_->CopyToDevice(from, targets_->data(), static_cast<int64_t>(bytes));
    return {.images = images, .targets = LossTargets(targets_->data()), .batch = std::ssize(batch.plan.samples)};
  }

  // Counts the batch that was copied last.
  void Count(const Batch& batch, std::span<const float> outputs, QualityCounts& counts) const {
    if (loss_ == LossKind::kSoftmax) {
      counts.Add(batch.plan.samples, outputs, labels_);
    } else {
      counts.Add(batch.plan.samples, outputs, values_);
    }
  }

 private:
  Input(const PredictOptions& options, const Model& model, std::vector<int32_t> model_classes)
      : device_(options.device),
        element_(options.element),
        loss_(model.network->loss()),
        outputs_(model.network->outputs()),
        model_classes_(std::move(model_classes)) {}

  Device* device_;
  Element element_;
  LossKind loss_;
  int64_t outputs_;
  std::vector<int32_t> model_classes_;  // by class of the data
  std::unique_ptr<DeviceBuffer> images_, targets_;
  std::unique_ptr<DeviceBuffer> rounded_;  // the images, of other elements than float32; else null
  std::vector<int32_t> labels_;
  std::vector<float> values_;
};

absl::StatusOr<std::unique_ptr<PredictionFile>> CreateFile(const PredictOptions& options, const Model& model) {
  if (options.out.empty()) return nullptr;
  std::vector<std::string> names = model.head.model.class_names;
  const LossKind loss = model.network->loss();
  const int64_t outputs = model.network->outputs();
  // A manifest may have been edited. One bit has two names.
  if (loss == LossKind::kBce && outputs == 1 && !names.empty()) names.resize(2);
  if (loss == LossKind::kSoftmax && !names.empty()) names.resize(static_cast<size_t>(outputs));
  return PredictionFile::Create({.path = options.out,
                                 .samples = options.data->test.count,
                                 .outputs = outputs,
                                 .content = loss == LossKind::kSoftmax ? PredictionFile::Content::kClasses
                                            : loss == LossKind::kBce   ? PredictionFile::Content::kBits
                                                                       : PredictionFile::Content::kNumbers,
                                 .class_names = std::move(names)});
}

// The work of this rank, and what the ranks do together. Start is for a rank that is not alone.
class Ranks {
 public:
  Ranks(const EvaluatingRanks& ranks, ProgressState* state) : exchange_(ranks.exchange), ranks_(ranks), state_(state) {}

  absl::Status Start(const Model& model) {
    JobSpec job = ranks_.job;
    if (ranks_.device_facts != nullptr) {
      ASSIGN_OR_RETURN(const Facts facts, ranks_.device_facts());
      std::ranges::copy(facts, std::back_inserter(job.agreed_flags));
    }
    // The name is compared first: it explains other parameters.
    job.agreed_flags.emplace_back("checkpoint.folder", std::filesystem::path(model.folder).filename().string());
    job.agreed_flags.emplace_back("checkpoint.sha256", model.sha256);
    // An exchange has parameters. No process reads these, so they are few.
    ASSIGN_OR_RETURN(job.layout, Layout::Create({{.name = "evaluation", .dims = {EvaluatingRanks::kStartValues}}}));
    ASSIGN_OR_RETURN(job.buckets, BucketMap::Create({.element_count = job.layout.element_count(),
                                                     .bucket_bytes = kChunkBytesMax,
                                                     .world_size = ranks_.bucket_world_size}));
    Enter(WorkPhase::kStart);
    return exchange_->Start(job, ranks_.start_values);
  }

  // The blocks of this rank.
  ElementRange Mine(int64_t block_count) const {
    // The ranks' ranges follow each other without a gap, and their sizes differ by one block at most.
    const int64_t rank = ranks_.job.rank, world_size = ranks_.job.world_size;
    return {block_count * rank / world_size, block_count * (rank + 1) / world_size};
  }

  // A rank that is ready early waits for the others inside a sum, which has a deadline. So all ranks compute for so
  // long and then add up how many blocks are left.
  absl::Duration round() const {
    return exchange_ == nullptr ? absl::InfiniteDuration() : ranks_.job.exchange_deadline / 4;
  }

  absl::StatusOr<bool> AnyLeft(int64_t blocks) {
    double left = static_cast<double>(blocks);
    RETURN_IF_ERROR(Gather({&left, 1}));
    return left > 0;
  }

  // Every rank has computed some of `values`, and has zeros elsewhere: their sum, which is exact, is a gather.
  absl::Status Gather(std::span<double> values) {
    if (exchange_ == nullptr) return absl::OkStatus();
    Enter(WorkPhase::kExchange);
    return SumInParts(SumPurpose::kEvaluation, values, exchange_);
  }

  absl::Status Finish() { return exchange_ == nullptr ? absl::OkStatus() : exchange_->Finish(); }

  void Enter(WorkPhase phase) {
    if (state_ != nullptr) state_->Enter(phase, std::chrono::steady_clock::now());
  }

 private:
  GradientExchange* const exchange_;
  const EvaluatingRanks& ranks_;
  ProgressState* const state_;
};

// Turns outputs into what a prediction says, in place.
void Finish(const Model& model, std::span<float> outputs) {
  if (model.network->loss() == LossKind::kSoftmax) Softmax(outputs, model.network->outputs());
  if (model.network->loss() == LossKind::kBce) Sigmoid(outputs);
}

// One call of Predict.
class Prediction {
 public:
  explicit Prediction(const PredictOptions& options)
      : options_(options), data_(options.data->test), ranks_(options.ranks, options.state) {}

  absl::StatusOr<Evaluation> Run() {
    ASSIGN_OR_RETURN(model_, LoadNewest(options_));
    RETURN_IF_ERROR(CheckTargets(model_, data_));
    ASSIGN_OR_RETURN(std::vector<int32_t> model_classes, ModelClasses(model_, *options_.data));
    ASSIGN_OR_RETURN(Input input, Input::Create(options_, data_, model_, std::move(model_classes)));
    Evaluation evaluation{.folder = model_.folder, .samples = data_.count, .has_labels = data_.has_labels};
    RETURN_IF_ERROR(CheckData(model_, options_, &evaluation.note));
    // The ranks compare themselves before they compute: a difference costs no evaluation.
    RETURN_IF_ERROR(Meet());
    ASSIGN_OR_RETURN(file_, CreateFile(options_, model_));
    QualityCounts counts(model_.network->loss(), model_.network->outputs(), data_.count);
    losses_.resize(static_cast<size_t>(Sampler(sampler_).steps_per_epoch()));
    correct_.resize(losses_.size());
    RETURN_IF_ERROR(ComputeBlocks(input, counts));
    RETURN_IF_ERROR(ranks_.Gather(losses_));
    RETURN_IF_ERROR(ranks_.Gather(correct_));
    if (data_.has_labels) RETURN_IF_ERROR(ranks_.Gather(counts.counts()));
    if (file_ != nullptr) RETURN_IF_ERROR(file_->Commit());
    RETURN_IF_ERROR(ranks_.Finish());
    evaluation.class_names = model_.head.model.class_names;
    evaluation.quality = counts.Result(std::accumulate(losses_.begin(), losses_.end(), 0.0),
                                       std::accumulate(correct_.begin(), correct_.end(), 0.0),
                                       MeanVariance(data_.targets, data_.outputs()));
    return evaluation;
  }

 private:
  absl::Status Meet() {
    if (options_.ranks.exchange == nullptr) return absl::OkStatus();
    // A rank meets only the sizes of its own blocks, and the ranks compare how their devices compute all of them.
    for (const int64_t batch : Sampler(sampler_).ShareSizes()) {
      RETURN_IF_ERROR(model_.network->PlanEvaluation(batch));
    }
    return ranks_.Start(model_);
  }

  absl::Status ComputeBlocks(Input& input, QualityCounts& counts) {
    const ElementRange mine = ranks_.Mine(std::ssize(losses_));
    const TrainedModel& facts = model_.head.model;
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Loader> batches,
        Loader::Create({.dataset = &data_,
                        .sampler = sampler_,
                        .normalization = {.mean = facts.mean, .deviation = facts.deviation, .type = data_.type},
                        .prefetch_depth = 0,
                        .first_step = mine.begin,
                        .end_step = mine.end}));
    int64_t block = mine.begin;
    for (bool any_left = true; any_left;) {
      const absl::Time end = SteadyNow() + ranks_.round();
      for (; block < mine.end && SteadyNow() < end; ++block) {
        if (options_.stop()) return absl::CancelledError("stopped by a signal: nothing was written");
        ranks_.Enter(WorkPhase::kEvaluation);  // again for every block: only a block that takes too long is a stall
        ASSIGN_OR_RETURN(const Batch* batch, batches->Next());
        RETURN_IF_ERROR(ComputeBlock(*batch, block, input, counts));
      }
      ASSIGN_OR_RETURN(any_left, ranks_.AnyLeft(mine.end - block));
    }
    return absl::OkStatus();
  }

  absl::Status ComputeBlock(const Batch& batch, int64_t block, Input& input, QualityCounts& counts) {
    const std::span<const float> parameters = {model_.parameters->floats(),
                                               static_cast<size_t>(model_.network->layout().element_count())};
    RETURN_IF_ERROR(model_.network->Evaluate(input.Copy(batch), parameters));
    const LossResult loss = model_.network->Result();
    losses_[static_cast<size_t>(block)] = loss.loss_sum;
    correct_[static_cast<size_t>(block)] = static_cast<double>(loss.correct);
    const auto width = static_cast<size_t>(model_.network->outputs());
    outputs_.resize(batch.plan.samples.size() * width);
    RETURN_IF_ERROR(model_.network->ReadOutputs(outputs_));
    for (size_t i = 0; i < batch.plan.samples.size(); ++i) {
      RETURN_IF_ERROR(CheckFinite(std::span<const float>(outputs_).subspan(i * width, width), batch.plan.samples[i]));
    }
    if (data_.has_labels) input.Count(batch, outputs_, counts);
    if (file_ == nullptr) return absl::OkStatus();
    Finish(model_, outputs_);
    return file_->Append(outputs_);
  }

  const PredictOptions& options_;
  const Dataset& data_;
  Ranks ranks_;
  const Sampler::Options sampler_ = {
      .sample_count = data_.count, .global_batch = kPredictionBatch, .order = Sampler::Order::kSequential};
  Model model_;
  std::unique_ptr<PredictionFile> file_;
  std::vector<double> losses_, correct_;  // by block
  std::vector<float> outputs_;            // of one block
};

}  // namespace

TargetType TargetOf(LossKind loss) {
  switch (loss) {
    case LossKind::kMse:
      return TargetType::kNumbers;
    case LossKind::kBce:
      return TargetType::kBits;
    case LossKind::kSoftmax:
      break;
  }
  return TargetType::kClass;
}

ModelInput InputOf(const std::string& checkpoint) {
  for (const std::string& folder : Candidates(checkpoint)) {
    const absl::StatusOr<Checkpoint> head = ReadCheckpointHead(folder);
    // Predict reports the damage later. An older checkpoint of the run tells the same input.
    if (!head.ok()) continue;
    const TrainedModel& model = head->model;
    const absl::StatusOr<LayerFile> layers = LayerFile::Parse(model.layer_file, "layer file");
    return {.columns = model.height * model.width == 1 ? model.channels : 0,
            .target = layers.ok() ? TargetOf(LossOf(*layers).kind) : TargetType::kClass};
  }
  return {};
}

absl::StatusOr<Evaluation> Predict(const PredictOptions& options) {
  absl::StatusOr<Evaluation> evaluation = Prediction(options).Run();
  // The other ranks wait for this one's sums. Without this they would wait until their deadlines.
  if (!evaluation.ok() && options.ranks.exchange != nullptr) options.ranks.exchange->Abort(evaluation.status());
  return evaluation;
}

}  // namespace starring
