#include "worker/python/starring_data.h"

#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/python/batch_lender.h"
#include "worker/python/starring.h"

// The handles of the C interface, which cannot be in a namespace.
struct st_dataset {
  std::shared_ptr<const starring::TrainAndTest> sets;
  starring::Normalization normalization;

  const starring::Dataset& Of(int32_t set) const { return set == ST_TRAIN ? sets->train : sets->test; }
};

struct st_loader {
  std::unique_ptr<starring::BatchLender> lender;
};

namespace starring {
namespace {

// Each thread has its own sentence, so that another thread's failure cannot replace it before the caller reads it.
thread_local std::string last_error;

int Fail(int code, std::string sentence) {
  last_error = std::move(sentence);
  return code;
}

int CodeOf(const absl::Status& status) {
  if (status.ok()) return ST_OK;
  if (absl::IsDeadlineExceeded(status)) return Fail(ST_TIMEOUT, std::string(status.message()));
  // The caller can mend these by other options or other files. ST_INTERNAL is the code of all other errors.
  const bool is_callers = absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsDataLoss(status) ||
                          absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status);
  return Fail(is_callers ? ST_INVALID : ST_INTERNAL, std::string(status.message()));
}

// Runs `work`, which returns a Status. No exception may leave a C function: of the standard library's, std::bad_alloc
// is the one that data sets meet.
template <typename Work>
int Guarded(Work work) {
  try {
    return CodeOf(work());
  } catch (const std::exception& error) {
    return Fail(ST_INTERNAL, absl::StrCat("the loader failed: ", error.what()));
  }
}

absl::Status CheckSize(absl::string_view name, uint32_t given, size_t expected) {
  if (given == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the caller's ", name, " has ", given, " bytes, the library's ",
                                                 expected, ": use library and caller of one release"));
}

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be from ", least, " to ", most));
}

int32_t TargetCode(TargetType target) {
  switch (target) {
    case TargetType::kNumbers:
      return ST_TARGET_NUMBERS;
    case TargetType::kBits:
      return ST_TARGET_BITS;
    case TargetType::kClass:
      break;
  }
  return ST_TARGET_CLASS;
}

std::optional<TargetType> TargetOfCode(int32_t code) {
  switch (code) {
    case ST_TARGET_CLASS:
      return TargetType::kClass;
    case ST_TARGET_NUMBERS:
      return TargetType::kNumbers;
    case ST_TARGET_BITS:
      return TargetType::kBits;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<std::unique_ptr<st_dataset>> OpenDataset(const st_dataset_options& options) {
  // The size is checked first: a shorter struct of an older header ends before the fields that are read below.
  RETURN_IF_ERROR(CheckSize("st_dataset_options", options.struct_bytes, sizeof options));
  if (options.name == nullptr) return absl::InvalidArgumentError("the data set has no name");
  // The negation also refuses NaN.
  if (!(options.test_fraction >= 0 && options.test_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("test_fraction is ", options.test_fraction, ", it must be 0 or more and below 1"));
  }
  RETURN_IF_ERROR(CheckRange("cifar100_labels", options.cifar100_labels, ST_CIFAR100_FINE, ST_CIFAR100_COARSE));
  RETURN_IF_ERROR(CheckRange("target", options.target, ST_TARGET_AS_FOUND, ST_TARGET_BITS));
  DatasetOptions dataset{
      .name = options.name, .data_dir = options.data_dir == nullptr ? "" : options.data_dir, .seed = options.seed};
  // A field of 0 means the default, so a caller in C can leave it out of the initialiser.
  const auto set = [](int64_t given, int64_t* value) { *value = given == 0 ? *value : given; };
  set(options.synthetic_train_count, &dataset.synthetic_train_count);
  set(options.synthetic_test_count, &dataset.synthetic_test_count);
  set(options.synthetic_height, &dataset.synthetic_height);
  set(options.synthetic_width, &dataset.synthetic_width);
  set(options.synthetic_channels, &dataset.synthetic_channels);
  set(options.synthetic_classes, &dataset.synthetic_classes);
  dataset.test_fraction = options.test_fraction;
  dataset.split_seed = options.split_seed;
  if (options.csv_label != nullptr) dataset.csv_label = options.csv_label;
  dataset.target = TargetOfCode(options.target);
  if (options.cifar100_labels == ST_CIFAR100_COARSE) dataset.cifar100_labels = Cifar100Labels::kCoarse;
  ASSIGN_OR_RETURN(TrainAndTest sets, LoadDataset(dataset));
  auto opened = std::make_unique<st_dataset>();
  // This pass reads every sample. If the disk fails, a mapped file reads as zeros, which Check reports.
  opened->normalization = NormalizationOf(sets.train);
  if (sets.train.mapped != nullptr) RETURN_IF_ERROR(sets.train.mapped->Check());
  opened->sets = std::make_shared<const TrainAndTest>(std::move(sets));
  return opened;
}

absl::Status CheckLoader(const st_loader_options& options) {
  RETURN_IF_ERROR(CheckSize("st_loader_options", options.struct_bytes, sizeof options));
  if (options.dataset == nullptr) return absl::InvalidArgumentError("the loader has no data set");
  RETURN_IF_ERROR(CheckRange("set", options.set, ST_TRAIN, ST_TEST));
  RETURN_IF_ERROR(CheckRange("augment", options.augment, ST_AUGMENT_NONE, ST_AUGMENT_CROP_FLIP));
  RETURN_IF_ERROR(CheckRange("global_batch", options.global_batch, 1, kGlobalBatchMax));
  // The rank's limit depends on world_size, which is checked before it.
  RETURN_IF_ERROR(CheckRange("world_size", options.world_size, 1, kWorldSizeMax));
  RETURN_IF_ERROR(CheckRange("rank", options.rank, 0, options.world_size - 1));
  RETURN_IF_ERROR(CheckRange("first_step", options.first_step, 0, kStepCountMax));
  RETURN_IF_ERROR(CheckRange("end_step", options.end_step, options.first_step, kStepCountMax));
  // The negation also refuses NaN.
  if (!(options.deadline_s > 0 && options.deadline_s <= kDeadlineSecondsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_s is ", options.deadline_s, ", it must be above 0 and at most ", kDeadlineSecondsMax));
  }
  if ((options.mean == nullptr) != (options.deviation == nullptr)) {
    return absl::InvalidArgumentError("mean and deviation belong together: give both or none");
  }
  const auto channels = options.dataset->sets->train.channels;
  for (int64_t c = 0; options.deviation != nullptr && c < channels; ++c) {
    if (options.deviation[c] > 0 && options.deviation[c] < std::numeric_limits<float>::infinity()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the deviation of channel ", c, " is ", options.deviation[c], ", it must be above 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<st_loader>> OpenLoader(const st_loader_options& options) {
  RETURN_IF_ERROR(CheckLoader(options));
  // The reference stays valid after st_dataset_close, because the lender shares `sets`.
  const Dataset& dataset = options.dataset->Of(options.set);
  Normalization normalization = options.dataset->normalization;
  if (options.mean != nullptr) {
    normalization.mean.assign(options.mean, options.mean + dataset.channels);
    normalization.deviation.assign(options.deviation, options.deviation + dataset.channels);
  }
  auto opened = std::make_unique<st_loader>();
  ASSIGN_OR_RETURN(
      opened->lender,
      BatchLender::Create(
          {.sets = options.dataset->sets,
           .loader = {.dataset = &dataset,
                      .sampler = {.sample_count = dataset.count,
                                  .global_batch = options.global_batch,
                                  .rank = options.rank,
                                  .world_size = options.world_size,
                                  .seed = options.seed,
                                  .order = options.shuffle ? Sampler::Order::kShuffled : Sampler::Order::kSequential},
                      .normalization = std::move(normalization),
                      .augment = options.augment == ST_AUGMENT_CROP_FLIP ? Augment::kCropFlip : Augment::kNone,
                      .threads = options.threads,
                      .prefetch_depth = options.prefetch_depth,
                      .first_step = options.first_step,
                      .end_step = options.end_step,
                      .deadline = absl::Seconds(options.deadline_s)}}));
  return opened;
}

absl::Status Next(st_loader* loader, st_batch* batch) {
  ASSIGN_OR_RETURN(const LentBatch lent, loader->lender->Next());
  *batch = {.step = lent.step,
            .epoch = lent.epoch,
            .global_count = lent.global_count,
            .count = lent.count,
            .images = lent.images.data(),
            .labels = lent.labels.data(),
            .targets = lent.targets.data(),
            .memory = lent.memory};
  return absl::OkStatus();
}

absl::Status GiveBack(st_loader* loader, void* memory) {
  ASSIGN_OR_RETURN(const BatchLender::State state, loader->lender->GiveBack(static_cast<std::byte*>(memory)));
  // The batches outlive st_loader_close. GiveBack or Close tells one caller that the loader has no user left.
  if (state == BatchLender::State::kUnused) delete loader;
  return absl::OkStatus();
}

absl::Status NoPointer(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the pointer to ", what, " is null"));
}

}  // namespace
}  // namespace starring

extern "C" {

int st_dataset_open(const st_dataset_options* options, st_dataset** dataset) {
  return starring::Guarded([&]() -> absl::Status {
    if (options == nullptr || dataset == nullptr) return starring::NoPointer("options or data set");
    ASSIGN_OR_RETURN(std::unique_ptr<st_dataset> opened, starring::OpenDataset(*options));
    *dataset = opened.release();
    return absl::OkStatus();
  });
}

int st_dataset_facts_of(const st_dataset* dataset, int32_t set, st_dataset_facts* facts) {
  return starring::Guarded([&]() -> absl::Status {
    if (dataset == nullptr || facts == nullptr) return starring::NoPointer("data set or facts");
    RETURN_IF_ERROR(starring::CheckRange("set", set, ST_TRAIN, ST_TEST));
    const starring::Dataset& images = dataset->Of(set);
    *facts = {.count = images.count,
              .height = images.height,
              .width = images.width,
              .channels = images.channels,
              .classes = images.classes,
              .target = starring::TargetCode(images.target),
              .target_values = images.target_values,
              .mean = dataset->normalization.mean.data(),
              .deviation = dataset->normalization.deviation.data()};
    return absl::OkStatus();
  });
}

int st_dataset_close(st_dataset* dataset) {
  delete dataset;
  return ST_OK;
}

int st_loader_open(const st_loader_options* options, st_loader** loader) {
  return starring::Guarded([&]() -> absl::Status {
    if (options == nullptr || loader == nullptr) return starring::NoPointer("options or loader");
    ASSIGN_OR_RETURN(std::unique_ptr<st_loader> opened, starring::OpenLoader(*options));
    *loader = opened.release();
    return absl::OkStatus();
  });
}

int st_loader_next(st_loader* loader, st_batch* batch) {
  return starring::Guarded([&]() -> absl::Status {
    if (loader == nullptr || batch == nullptr) return starring::NoPointer("loader or batch");
    return starring::Next(loader, batch);
  });
}

int st_loader_give_back(st_loader* loader, void* memory) {
  return starring::Guarded([&]() -> absl::Status {
    if (loader == nullptr || memory == nullptr) return starring::NoPointer("loader or memory");
    return starring::GiveBack(loader, memory);
  });
}

int st_loader_close(st_loader* loader) {
  if (loader == nullptr) return ST_OK;
  return starring::Guarded([&]() -> absl::Status {
    if (loader->lender->Close() == starring::BatchLender::State::kUnused) delete loader;
    return absl::OkStatus();
  });
}

const char* st_data_last_error(void) { return starring::last_error.c_str(); }

}  // extern "C"
