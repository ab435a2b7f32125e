#include "worker/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/host/log.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/predict/prediction_file.h"

namespace starring {
namespace {

constexpr int64_t kTop = 5;

// A model with its trained parameters.
struct Model {
  std::string folder;
  Checkpoint head;
  std::unique_ptr<Network> network;
  std::unique_ptr<DeviceBuffer> parameters;
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

// By class of the data that class of the model.
absl::StatusOr<std::vector<int32_t>> ModelClasses(const Model& model, const TrainAndTest& data) {
  const TrainedModel& facts = model.head.model;
  // Numbers are compared by value: a file may have -1.0 where another has -1.
  const auto name_of = [](const std::vector<std::string>& names, int64_t c) {
    if (names.empty()) return absl::StrCat(c);
    const std::string& name = names[static_cast<size_t>(c)];
    double value = 0;
    return absl::SimpleAtod(name, &value) ? absl::StrCat(value) : name;
  };
  std::map<std::string, int32_t> known;
  for (int32_t c = 0; c < facts.outputs; ++c) {
    // A class without a sample has no name.
    if (facts.class_names.empty() || c < std::ssize(facts.class_names)) known[name_of(facts.class_names, c)] = c;
  }
  std::vector<int32_t> classes(static_cast<size_t>(data.test.classes));
  for (const uint16_t label : data.test.has_labels ? data.test.labels : std::vector<uint16_t>()) {
    const std::string name = name_of(data.class_names, label);
    const auto found = known.find(name);
    if (found == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the data have the label ", name, ", which the model in ",
                                                     model.folder, " with its ", facts.outputs,
                                                     " classes does not know: give the flags of the data as for its "
                                                     "training"));
    }
    classes[label] = found->second;
  }
  return classes;
}

// Whether the data are those of the training.
absl::Status CheckData(const Model& model, const PredictOptions& options, std::string* note) {
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

// DataLoss if the checkpoint is damaged.
absl::StatusOr<Model> Load(const std::string& folder, const PredictOptions& options) {
  Model model{.folder = folder};
  ASSIGN_OR_RETURN(model.head, ReadCheckpointHead(folder));
  const TrainedModel& facts = model.head.model;
  RETURN_IF_ERROR(CheckFits(facts, options.data->test, folder));
  ASSIGN_OR_RETURN(const LayerFile layers, LayerFile::Parse(facts.layer_file, absl::StrCat(folder, ": layer file")));
  ASSIGN_OR_RETURN(model.network, Network::Create(layers,
                                                  {.height = facts.height,
                                                   .width = facts.width,
                                                   .channels = facts.channels,
                                                   .classes = facts.outputs,
                                                   .batch_max = 1,
                                                   .evaluation_batch_max = kPredictionBatch},
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
    if (!absl::IsDataLoss(model.status())) return model;
    damage = model.status();
    Log(absl::StrCat("passed over: ", damage.message()), LogLevel::kWarning);
  }
  return damage;
}

// The probabilities of (rows, classes) outputs, in place.
void Softmax(std::span<float> outputs, int64_t classes) {
  for (; !outputs.empty(); outputs = outputs.subspan(static_cast<size_t>(classes))) {
    const std::span<float> row = outputs.first(static_cast<size_t>(classes));
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

// How many outputs are above that of the label, or equal and before it.
int64_t PlaceOf(std::span<const float> row, int32_t label) {
  const float own = row[static_cast<size_t>(label)];
  int64_t above = 0;
  for (size_t c = 0; c < row.size(); ++c) {
    if (row[c] > own || (row[c] == own && c < static_cast<size_t>(label))) ++above;
  }
  return above;
}

// The device's memory of one batch.
class Input {
 public:
  static absl::StatusOr<Input> Create(Device* device, const Dataset& data) {
    Input input(device);
    const int64_t values = kPredictionBatch * data.image_values();
    ASSIGN_OR_RETURN(input.images_, device->Allocate(values * static_cast<int64_t>(sizeof(float))), "a batch");
    ASSIGN_OR_RETURN(input.labels_, device->Allocate(kPredictionBatch * static_cast<int64_t>(sizeof(int32_t))));
    return input;
  }

  // `labels` are not used after the evaluation of the batch.
  NetworkInput Copy(const Batch& batch, std::span<const int32_t> labels) {
    device_->CopyToDevice(batch.images.data(), images_->data(), static_cast<int64_t>(batch.images.size_bytes()));
    device_->CopyToDevice(labels.data(), labels_->data(), static_cast<int64_t>(labels.size_bytes()));
    return {.images = images_->floats(),
            .labels = static_cast<const int32_t*>(labels_->data()),
            .batch = std::ssize(labels)};
  }

 private:
  explicit Input(Device* device) : device_(device) {}
  Device* device_;
  std::unique_ptr<DeviceBuffer> images_, labels_;
};

}  // namespace

int64_t ColumnsOf(const std::string& checkpoint) {
  for (const std::string& folder : Candidates(checkpoint)) {
    const absl::StatusOr<Checkpoint> head = ReadCheckpointHead(folder);
    if (head.ok()) return head->model.height * head->model.width == 1 ? head->model.channels : 0;
  }
  return 0;
}

absl::StatusOr<Evaluation> Predict(const PredictOptions& options) {
  const Dataset& data = options.data->test;
  ASSIGN_OR_RETURN(Model model, LoadNewest(options));
  const int64_t classes = model.head.model.outputs;
  std::unique_ptr<PredictionFile> file;
  if (!options.out.empty()) {
    std::vector<std::string> names = model.head.model.class_names;
    if (!names.empty()) names.resize(static_cast<size_t>(classes));
    ASSIGN_OR_RETURN(
        file, PredictionFile::Create(
                  {.path = options.out, .samples = data.count, .classes = classes, .class_names = std::move(names)}));
  }
  const Sampler::Options sampler = {
      .sample_count = data.count, .global_batch = kPredictionBatch, .order = Sampler::Order::kSequential};
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Loader> batches,
      Loader::Create(
          {.dataset = &data,
           .sampler = sampler,
           .normalization = {.mean = model.head.model.mean, .deviation = model.head.model.deviation, .type = data.type},
           .prefetch_depth = 0,
           .end_step = Sampler(sampler).steps_per_epoch()}));
  ASSIGN_OR_RETURN(Input input, Input::Create(options.device, data));
  const std::span<const float> parameters = {model.parameters->floats(),
                                             static_cast<size_t>(model.network->layout().element_count())};
  ASSIGN_OR_RETURN(const std::vector<int32_t> model_classes, ModelClasses(model, *options.data));
  Evaluation evaluation{.folder = model.folder, .samples = data.count, .has_labels = data.has_labels};
  RETURN_IF_ERROR(CheckData(model, options, &evaluation.note));
  int64_t correct = 0, among_top = 0;
  std::vector<float> outputs;
  std::vector<int32_t> labels;
  for (int64_t done = 0; done < data.count; done += std::ssize(labels)) {
    if (options.stop()) return absl::CancelledError("stopped by a signal: nothing was written");
    ASSIGN_OR_RETURN(const Batch* batch, batches->Next());
    labels.clear();
    for (const int32_t label : batch->labels) labels.push_back(model_classes[static_cast<size_t>(label)]);
    RETURN_IF_ERROR(model.network->Evaluate(input.Copy(*batch, labels), parameters));
    evaluation.loss += model.network->Result().loss_sum;
    outputs.resize(labels.size() * static_cast<size_t>(classes));
    RETURN_IF_ERROR(model.network->ReadOutputs(outputs));
    for (size_t i = 0; i < labels.size(); ++i) {
      const auto row = std::span<const float>(outputs).subspan(i * static_cast<size_t>(classes), classes);
      RETURN_IF_ERROR(CheckFinite(row, done + static_cast<int64_t>(i)));
      const int64_t place = PlaceOf(row, labels[i]);
      correct += place == 0 ? 1 : 0;
      among_top += place < kTop ? 1 : 0;
    }
    if (file == nullptr) continue;
    Softmax(outputs, classes);
    RETURN_IF_ERROR(file->Append(outputs));
  }
  if (file != nullptr) RETURN_IF_ERROR(file->Commit());
  const auto samples = static_cast<double>(data.count);
  evaluation.loss /= samples;
  evaluation.accuracy = static_cast<double>(correct) / samples;
  evaluation.top5 = static_cast<double>(among_top) / samples;
  return evaluation;
}

}  // namespace starring
