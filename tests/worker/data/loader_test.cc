#include "worker/data/loader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/crop_flip.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"

namespace starring {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// The value at `place` of all values.
double ValueAt(const Dataset& dataset, int64_t place) {
  if (dataset.type == FieldType::kPixels) return dataset.images[static_cast<size_t>(place)];
  float number = 0;
  std::memcpy(&number, dataset.images.data() + place * static_cast<int64_t>(sizeof number), sizeof number);
  return number;
}

// The pixels become numbers between -25 and 39.
void MakeNumbers(Dataset& dataset) {
  std::vector<float> numbers;
  for (const uint8_t pixel : dataset.images) numbers.push_back(0.25f * static_cast<float>(pixel) - 25);
  dataset.type = FieldType::kNumbers;
  dataset.images.resize(numbers.size() * sizeof(float));
  std::memcpy(dataset.images.data(), numbers.data(), dataset.images.size());
}

// The size depends on `channels` too, so that odd and even rows occur.
Dataset MakeDataset(int64_t count, int64_t channels, FieldType type = FieldType::kPixels) {
  DatasetOptions options{.name = "synthetic", .synthetic_train_count = count, .synthetic_test_count = 1};
  options.synthetic_height = 5 + channels;
  options.synthetic_width = 7 + channels;
  options.synthetic_channels = channels;
  auto sets = LoadDataset(options);
  EXPECT_TRUE(sets.ok()) << sets.status();
  if (type == FieldType::kNumbers) MakeNumbers(sets->train);
  return std::move(sets)->train;
}

Normalization MakeNormalization(int64_t channels) {
  Normalization normalization;
  for (int64_t c = 0; c < channels; ++c) {
    normalization.mean.push_back(0.25f + 0.125f * static_cast<float>(c));
    normalization.deviation.push_back(0.5f / static_cast<float>(c + 1));
  }
  return normalization;
}

Loader::Options MakeOptions(const Dataset& dataset, int64_t global_batch) {
  Normalization normalization = MakeNormalization(dataset.channels);
  normalization.type = dataset.type;
  return {.dataset = &dataset,
          .sampler = {.sample_count = dataset.count, .global_batch = global_batch, .seed = 11},
          .normalization = normalization,
          .end_step = 1 << 20};
}

std::unique_ptr<Loader> MakeLoader(const Loader::Options& options) {
  auto loader = Loader::Create(options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  return std::move(loader).value();
}

// The reference for a batch, from the contract: padding of zeros, then normalisation in double precision.
std::vector<double> ReferenceImage(const Dataset& dataset, int64_t sample, const Normalization& normalization,
                                   const CropFlip& crop) {
  std::vector<double> image;
  for (int64_t y = 0; y < dataset.height; ++y) {
    for (int64_t x = 0; x < dataset.width; ++x) {
      const int64_t from_y = y + crop.top - kCropPadding;
      const int64_t unflipped = crop.flip == CropFlip::Flip::kYes ? dataset.width - 1 - x : x;
      const int64_t from_x = unflipped + crop.left - kCropPadding;
      const bool inside = from_y >= 0 && from_y < dataset.height && from_x >= 0 && from_x < dataset.width;
      for (int64_t c = 0; c < dataset.channels; ++c) {
        const int64_t at = ((sample * dataset.height + from_y) * dataset.width + from_x) * dataset.channels + c;
        const double value = inside ? ValueAt(dataset, at) : 0;
        const double unit = dataset.type == FieldType::kPixels ? 255 : 1;
        image.push_back((value / unit - normalization.mean[c]) / normalization.deviation[c]);
      }
    }
  }
  return image;
}

class LoaderContentTest : public ::testing::TestWithParam<std::tuple<int64_t, Loader::Augment, FieldType>> {};

TEST_P(LoaderContentTest, ABatchHoldsThePlannedSamplesNormalised) {
  const auto [channels, augment, type] = GetParam();
  const Dataset dataset = MakeDataset(50, channels, type);
  Loader::Options options = MakeOptions(dataset, 16);
  options.augment = augment;
  const auto loader = MakeLoader(options);
  Sampler sampler(options.sampler);
  for (int64_t step = 0; step < 9; ++step) {
    const auto batch = loader->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    const BatchPlan plan = sampler.Plan(step);
    EXPECT_EQ((*batch)->plan.step, step);
    EXPECT_EQ((*batch)->plan.samples, plan.samples);
    ASSERT_EQ((*batch)->labels.size(), plan.samples.size());
    ASSERT_EQ(std::ssize((*batch)->images), std::ssize(plan.samples) * dataset.image_values());
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*batch)->images.data()) % 64, 0u);
    for (size_t i = 0; i < plan.samples.size(); ++i) {
      const int64_t sample = plan.samples[i];
      const CropFlip crop =
          augment == Loader::Augment::kNone ? CropFlip{} : DrawCropFlip(options.sampler.seed, plan.epoch, sample);
      const auto expected = ReferenceImage(dataset, sample, options.normalization, crop);
      const auto image = (*batch)->images.subspan(i * dataset.image_values(), dataset.image_values());
      const double tolerance = type == FieldType::kPixels ? 1e-5 : 1e-4;
      EXPECT_THAT(image, Pointwise(::testing::DoubleNear(tolerance), expected)) << "sample " << sample;
      EXPECT_EQ((*batch)->labels[i], dataset.labels[static_cast<size_t>(sample)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllChannels, LoaderContentTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 17),
                                            ::testing::Values(Loader::Augment::kNone, Loader::Augment::kCropFlip),
                                            ::testing::Values(FieldType::kPixels, FieldType::kNumbers)));

// A GPU that normalises the stored values gets the same bits as the loader.
TEST_P(LoaderContentTest, StoredValuesNormaliseToTheImagesOfTheOtherFormat) {
  const auto [channels, augment, type] = GetParam();
  const Dataset dataset = MakeDataset(23, channels, type);
  Loader::Options options = MakeOptions(dataset, 16);
  options.augment = augment;
  const auto normalized = MakeLoader(options);
  options.format = Loader::Format::kStored;
  const auto stored = MakeLoader(options);
  const NormalizerConstants constants = NormalizerConstantsOf(options.normalization);
  for (int64_t step = 0; step < 4; ++step) {
    const auto expected = normalized->Next();
    const auto batch = stored->Next();
    ASSERT_TRUE(batch.ok() && expected.ok());
    EXPECT_TRUE((*expected)->stored.empty());
    EXPECT_TRUE((*batch)->images.empty());
    EXPECT_EQ((*batch)->plan.samples, (*expected)->plan.samples);
    EXPECT_TRUE(std::equal((*batch)->labels.begin(), (*batch)->labels.end(), (*expected)->labels.begin()));
    ASSERT_EQ(std::ssize((*batch)->stored), std::ssize((*expected)->images) * dataset.value_bytes());
    const Dataset values{.type = type, .images = {(*batch)->stored.begin(), (*batch)->stored.end()}, .labels = {}};
    for (size_t i = 0; i < (*expected)->images.size(); ++i) {
      const auto c = i % static_cast<size_t>(channels);
      const float distance = static_cast<float>(ValueAt(values, static_cast<int64_t>(i))) - constants.offset[c];
      ASSERT_EQ(distance * constants.scale[c], (*expected)->images[i]) << "value " << i;
    }
  }
}

// A GPU that has the data set needs only the samples' numbers.
TEST_P(LoaderContentTest, SamplesAreThoseOfTheOtherFormats) {
  const auto [channels, augment, type] = GetParam();
  const Dataset dataset = MakeDataset(23, channels, type);
  Loader::Options options = MakeOptions(dataset, 16);
  options.augment = augment;
  const auto normalized = MakeLoader(options);
  options.format = Loader::Format::kSamples;
  const auto numbers = MakeLoader(options);
  for (int64_t step = 0; step < 4; ++step) {
    const auto expected = normalized->Next();
    const auto batch = numbers->Next();
    ASSERT_TRUE(batch.ok() && expected.ok());
    EXPECT_TRUE((*expected)->samples.empty());
    EXPECT_TRUE((*batch)->images.empty() && (*batch)->stored.empty() && (*batch)->labels.empty());
    EXPECT_TRUE(std::equal((*batch)->samples.begin(), (*batch)->samples.end(), (*expected)->plan.samples.begin(),
                           (*expected)->plan.samples.end()));
    EXPECT_EQ(reinterpret_cast<const std::byte*>((*batch)->samples.data()), (*batch)->memory);
  }
}

std::vector<std::byte> AllBytes(const Loader::Options& options, int64_t steps) {
  const auto loader = MakeLoader(options);
  std::vector<std::byte> bytes;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = loader->Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    for (const auto part :
         {std::as_bytes((*batch)->images), std::as_bytes((*batch)->stored), std::as_bytes((*batch)->labels)}) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  return bytes;
}

TEST(LoaderTest, TheSameBatchesWhateverThreadsAndDepth) {
  const Dataset dataset = MakeDataset(40, 3);
  Loader::Options options = MakeOptions(dataset, 17);
  options.augment = Loader::Augment::kCropFlip;
  options.prefetch_depth = 0;
  const auto expected = AllBytes(options, 12);
  for (const int threads : {1, 2, 8}) {
    for (const int depth : {0, 1, 2, 7}) {
      options.threads = threads;
      options.prefetch_depth = depth;
      EXPECT_EQ(AllBytes(options, 12), expected) << threads << " threads, depth " << depth;
    }
  }
}

TEST(LoaderTest, TargetsAreThoseOfTheSamples) {
  Dataset dataset = MakeDataset(40, 1);
  dataset.target = TargetType::kNumbers;
  dataset.target_values = 3;
  dataset.labels.clear();
  for (int i = 0; i < 120; ++i) dataset.targets.push_back(static_cast<float>(i));
  for (const auto format : {Loader::Format::kNormalized, Loader::Format::kStored}) {
    Loader::Options options = MakeOptions(dataset, 16);
    options.format = format;
    const auto loader = MakeLoader(options);
    for (int64_t step = 0; step < options.end_step; ++step) {
      const Batch& batch = **loader->Next();
      EXPECT_TRUE(batch.labels.empty());
      ASSERT_EQ(batch.targets.size(), 3 * batch.plan.samples.size());
      EXPECT_EQ(batch.target_data(), batch.memory);
      EXPECT_EQ(batch.target_bytes(), 4 * std::ssize(batch.targets));
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        EXPECT_EQ(batch.targets[i], static_cast<float>(3 * batch.plan.samples[i / 3] + static_cast<int64_t>(i % 3)));
      }
    }
  }
}

TEST(LoaderTest, RanksTogetherGetWhatOneGets) {
  const Dataset dataset = MakeDataset(23, 1);
  Loader::Options options = MakeOptions(dataset, 10);
  options.augment = Loader::Augment::kCropFlip;
  const auto whole = MakeLoader(options);
  std::vector<std::unique_ptr<Loader>> parts;
  for (int rank = 0; rank < 4; ++rank) {
    Loader::Options part = options;
    part.sampler.rank = rank;
    part.sampler.world_size = 4;
    parts.push_back(MakeLoader(part));
  }
  for (int step = 0; step < 6; ++step) {
    std::vector<float> images;
    for (const auto& part : parts) {
      const auto batch = part->Next();
      ASSERT_TRUE(batch.ok());
      images.insert(images.end(), (*batch)->images.begin(), (*batch)->images.end());
    }
    const auto batch = whole->Next();
    ASSERT_TRUE(batch.ok());
    EXPECT_THAT((*batch)->images, Pointwise(Eq(), images)) << "step " << step;
  }
}

TEST(LoaderTest, DeliversThePartsOfAStepInTheirOrder) {
  const Dataset dataset = MakeDataset(50, 1);
  for (const int depth : {0, 2}) {
    Loader::Options options = MakeOptions(dataset, 16);
    options.sampler.world_size = 4;
    options.parts = {2, 3, 0};
    options.first_step = 2;
    options.end_step = 7;
    options.prefetch_depth = depth;
    const auto loader = MakeLoader(options);
    Sampler sampler(options.sampler);
    for (int64_t step = 2; step < 7; ++step) {
      for (const int part : options.parts) {
        const auto batch = loader->Next();
        ASSERT_TRUE(batch.ok()) << batch.status();
        EXPECT_EQ((*batch)->plan.step, step);
        EXPECT_EQ((*batch)->plan.samples, sampler.Plan(step, part).samples);
        EXPECT_EQ((*batch)->plan.first_sample, sampler.Plan(step, part).first_sample);
      }
    }
    EXPECT_THAT(std::string(loader->Next().status().message()), HasSubstr("no batch after step 6"));
  }
}

TEST(LoaderTest, ARankWithoutSamplesGetsAnEmptyBatch) {
  const Dataset dataset = MakeDataset(9, 1);
  Loader::Options options = MakeOptions(dataset, 4);
  options.sampler.world_size = 4;
  options.first_step = 2;  // of one sample, which another rank has
  const auto loader = MakeLoader(options);
  const auto batch = loader->Next();
  ASSERT_TRUE(batch.ok());
  EXPECT_TRUE((*batch)->images.empty());
  EXPECT_TRUE((*batch)->labels.empty());
  EXPECT_EQ((*batch)->plan.global_count, 1);
}

TEST(LoaderTest, BeginsAtFirstStepAndEndsAfterTheLast) {
  const Dataset dataset = MakeDataset(20, 1);
  for (const int depth : {0, 3}) {
    Loader::Options options = MakeOptions(dataset, 4);
    options.prefetch_depth = depth;
    options.first_step = 7;
    options.end_step = 9;
    const auto loader = MakeLoader(options);
    EXPECT_EQ((*loader->Next())->plan.step, 7);
    EXPECT_EQ((*loader->Next())->plan.step, 8);
    for (int i = 0; i < 2; ++i) {
      const auto end = loader->Next();
      EXPECT_EQ(end.status().code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(end.status().message(), HasSubstr("step 8"));
    }
  }
}

TEST(LoaderTest, ABatchStaysUntouchedUntilTheNextCall) {
  const Dataset dataset = MakeDataset(64, 1);
  Loader::Options options = MakeOptions(dataset, 8);
  options.prefetch_depth = 1;
  const auto loader = MakeLoader(options);
  Loader::Options lazy = options;
  lazy.prefetch_depth = 0;
  const auto reference = MakeLoader(lazy);
  for (int step = 0; step < 200; ++step) {
    const auto batch = loader->Next();
    std::this_thread::yield();  // gives the fillers time to overwrite the batch, if they wrongly do
    EXPECT_THAT((*batch)->images, Pointwise(Eq(), (*reference->Next())->images)) << "step " << step;
  }
}

// A filler that outlived its loader would write to freed memory, which the sanitizers see.
TEST(LoaderTest, MayBeDestroyedAtAnyMoment) {
  const Dataset dataset = MakeDataset(64, 3);
  Loader::Options options = MakeOptions(dataset, 32);
  options.augment = Loader::Augment::kCropFlip;
  for (int round = 0; round < 40; ++round) {
    options.threads = 1 + round % 3;
    options.prefetch_depth = round % 5;
    const auto loader = MakeLoader(options);
    for (int step = 0; step < round % 7; ++step) ASSERT_TRUE(loader->Next().ok());
  }
}

// A device's memory with guard bytes around each batch.
class GuardedMemory final : public BatchMemory {
 public:
  static constexpr size_t kGuardBytes = 64;
  static constexpr auto kGuard = std::byte{0x5a};

  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override {
    if (std::ssize(blocks_) == blocks_max) return absl::ResourceExhaustedError("no more");
    const size_t bytes = static_cast<size_t>(RoundUp(size_bytes, kCacheLineBytes)) + 2 * kGuardBytes;
    auto* const data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kCacheLineBytes}));
    std::fill_n(data, bytes, kGuard);
    blocks_.push_back({.data = std::unique_ptr<std::byte, Delete>(data), .batch_bytes = size_bytes});
    return data + kGuardBytes;
  }

  bool Has(std::span<const std::byte> part) const {
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      const std::byte* const begin = block.data.get() + kGuardBytes;
      return part.data() >= begin && part.data() + part.size() <= begin + block.batch_bytes;
    });
  }
  bool GuardsAreIntact() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) {
      const std::byte* const after = block.data.get() + kGuardBytes + block.batch_bytes;
      return std::count(block.data.get(), block.data.get() + kGuardBytes, kGuard) == kGuardBytes &&
             std::count(after, after + kGuardBytes, kGuard) == kGuardBytes;
    });
  }
  int64_t block_count() const { return std::ssize(blocks_); }

  int64_t blocks_max = 100;

 private:
  struct Delete {
    void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kCacheLineBytes}); }
  };
  struct Block {
    std::unique_ptr<std::byte, Delete> data;
    int64_t batch_bytes = 0;
  };
  std::vector<Block> blocks_;
};

TEST(LoaderTest, BatchesAreInTheMemoryThatIsGiven) {
  const Dataset dataset = MakeDataset(40, 3);
  for (const auto format : {Loader::Format::kNormalized, Loader::Format::kStored}) {
    Loader::Options options = MakeOptions(dataset, 17);
    options.augment = Loader::Augment::kCropFlip;
    options.format = format;
    options.prefetch_depth = 0;
    const auto expected = AllBytes(options, 12);
    for (const auto& [threads, depth] : {std::pair(1, 0), std::pair(1, 3), std::pair(4, 5)}) {
      GuardedMemory memory;  // outlives the loader
      options.memory = &memory;
      options.threads = threads;
      options.prefetch_depth = depth;
      EXPECT_EQ(AllBytes(options, 12), expected) << threads << " threads, depth " << depth;
      EXPECT_EQ(memory.block_count(), depth + 1);  // the trainer's batch, and those ahead of it
      const auto loader = MakeLoader(options);
      const BatchLayout layout =
          LayOutBatch(17, 4, dataset.image_bytes() * (format == Loader::Format::kStored ? 1 : 4));
      for (int step = 0; step < 12; ++step) {
        const Batch& batch = **loader->Next();
        const auto values = batch.images.empty() ? std::as_bytes(batch.stored) : std::as_bytes(batch.images);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(batch.memory) % kCacheLineBytes, 0u);
        EXPECT_EQ(std::as_bytes(batch.labels).data(), batch.memory);
        EXPECT_EQ(values.data(), batch.memory + layout.values);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % kCacheLineBytes, 0u);
        EXPECT_TRUE(memory.Has(std::as_bytes(batch.labels)));
        EXPECT_TRUE(memory.Has(values));
      }
      EXPECT_TRUE(memory.GuardsAreIntact());
    }
    options.memory = nullptr;
  }
}

TEST(LoaderTest, ABatchWhoseMemoryIsTakenOutStaysUntouched) {
  const Dataset dataset = MakeDataset(40, 3);
  for (const auto format : {Loader::Format::kNormalized, Loader::Format::kStored, Loader::Format::kSamples}) {
    for (const int depth : {0, 1, 3}) {
      GuardedMemory memory;  // outlives the loader
      Loader::Options options = MakeOptions(dataset, 17);
      options.augment = Loader::Augment::kCropFlip;
      options.format = format;
      options.prefetch_depth = depth;
      options.memory = &memory;
      const auto loader = MakeLoader(options);
      std::vector<Batch> kept;
      for (int step = 0; step < 12; ++step) {
        kept.push_back(**loader->Next());
        // Longer than any format needs.
        loader->ReplaceMemory(*memory.Allocate(LayOutBatch(17, 4, 4 * dataset.image_bytes()).size_bytes));
      }
      options.memory = nullptr;
      const auto expected = MakeLoader(options);
      for (const Batch& batch : kept) {
        const Batch& same = **expected->Next();
        EXPECT_THAT(batch.images, Pointwise(Eq(), same.images));
        EXPECT_THAT(batch.stored, Pointwise(Eq(), same.stored));
        EXPECT_THAT(batch.labels, Pointwise(Eq(), same.labels));
        EXPECT_THAT(batch.samples, Pointwise(Eq(), same.samples));
      }
      EXPECT_TRUE(memory.GuardsAreIntact());
    }
  }
}

TEST(LoaderTest, TooLittleMemoryIsRefusedWithTheWayOut) {
  const Dataset dataset = MakeDataset(40, 3);
  Loader::Options options = MakeOptions(dataset, 17);
  GuardedMemory memory;
  memory.blocks_max = options.prefetch_depth;  // one too few
  options.memory = &memory;
  const auto loader = Loader::Create(options);
  EXPECT_EQ(loader.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(loader.status().message(),
            "one of 4 batches of the loader (give a smaller --global_batch or --prefetch_depth): no more");
}

TEST(LoaderTest, SequentialOrderIsTheDataSetInOrder) {
  const Dataset dataset = MakeDataset(10, 1);
  Loader::Options options = MakeOptions(dataset, 4);
  options.sampler.order = Sampler::Order::kSequential;
  const auto loader = MakeLoader(options);
  std::vector<int32_t> labels;
  for (int step = 0; step < 3; ++step) {
    const auto batch = loader->Next();
    labels.insert(labels.end(), (*batch)->labels.begin(), (*batch)->labels.end());
  }
  EXPECT_THAT(labels, Pointwise(Eq(), dataset.labels));
}

TEST(LoaderTest, RefusesOptionsThatMakeNoSense) {
  const Dataset dataset = MakeDataset(10, 3);
  const auto message = [](const Loader::Options& options) {
    const auto loader = Loader::Create(options);
    EXPECT_EQ(loader.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loader.status().message());
  };
  Loader::Options options = MakeOptions(dataset, 4);
  options.threads = 0;
  EXPECT_THAT(message(options), HasSubstr("loader threads is 0, expected 1 to 256"));
  options = MakeOptions(dataset, 4);
  options.prefetch_depth = -1;
  EXPECT_THAT(message(options), HasSubstr("loader prefetch_depth is -1, expected 0 to 64"));
  options = MakeOptions(dataset, 4);
  options.normalization = MakeNormalization(1);
  EXPECT_THAT(message(options), HasSubstr("1 means and 1 deviations, the images have 3 channels"));
}

}  // namespace
}  // namespace starring
