#include "worker/python/starring_data.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/python/starring.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

st_dataset_options SyntheticOptions() {
  st_dataset_options options = {};
  options.struct_bytes = sizeof options;
  options.name = "synthetic";
  options.synthetic_train_count = 43;
  options.synthetic_test_count = 9;
  options.synthetic_height = 6;
  options.synthetic_width = 5;
  options.synthetic_channels = 3;
  return options;
}

TrainAndTest SyntheticSets() {
  DatasetOptions options{.name = "synthetic", .synthetic_train_count = 43, .synthetic_test_count = 9};
  options.synthetic_height = 6;
  options.synthetic_width = 5;
  options.synthetic_channels = 3;
  return *LoadDataset(options);
}

class StarringDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const st_dataset_options options = SyntheticOptions();
    ASSERT_EQ(st_dataset_open(&options, &dataset_), ST_OK) << st_data_last_error();
    options_.struct_bytes = sizeof options_;
    options_.dataset = dataset_;
    options_.global_batch = 10;
    options_.world_size = 1;
    options_.seed = 4;
    options_.shuffle = 1;
    options_.threads = 1;
    options_.prefetch_depth = 2;
    options_.end_step = 12;
    options_.deadline_s = 60;
  }
  void TearDown() override { EXPECT_EQ(st_dataset_close(dataset_), ST_OK); }

  st_loader* Open() {
    st_loader* loader = nullptr;
    EXPECT_EQ(st_loader_open(&options_, &loader), ST_OK) << st_data_last_error();
    return loader;
  }
  std::string Refusal() {
    st_loader* loader = nullptr;
    EXPECT_EQ(st_loader_open(&options_, &loader), ST_INVALID);
    return st_data_last_error();
  }

  st_dataset* dataset_ = nullptr;
  st_loader_options options_ = {};
};

TEST_F(StarringDataTest, ADataSetTellsItsFacts) {
  const TrainAndTest sets = SyntheticSets();
  const Normalization normalization = NormalizationFromSums(PixelSums(sets.train, 0, sets.train.count));
  for (const auto& [set, count] : {std::pair(ST_TRAIN, 43), std::pair(ST_TEST, 9)}) {
    st_dataset_facts facts;
    ASSERT_EQ(st_dataset_facts_of(dataset_, set, &facts), ST_OK);
    EXPECT_EQ(facts.count, count);
    EXPECT_THAT((std::vector{facts.height, facts.width, facts.channels, facts.classes}), ElementsAre(6, 5, 3, 10));
    EXPECT_EQ(facts.target, ST_TARGET_CLASS);
    EXPECT_EQ(facts.target_values, 0);
    EXPECT_THAT(std::vector(facts.mean, facts.mean + 3), Pointwise(Eq(), normalization.mean));
    EXPECT_THAT(std::vector(facts.deviation, facts.deviation + 3), Pointwise(Eq(), normalization.deviation));
  }
}

TEST_F(StarringDataTest, BatchesAreThoseOfTheWorkersLoader) {
  const TrainAndTest sets = SyntheticSets();
  for (const int32_t set : {ST_TRAIN, ST_TEST}) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      const bool is_training = set == ST_TRAIN;
      const Dataset& images = is_training ? sets.train : sets.test;
      options_.set = set;
      options_.rank = rank;
      options_.world_size = 3;
      options_.shuffle = is_training;
      options_.augment = is_training ? ST_AUGMENT_CROP_FLIP : ST_AUGMENT_NONE;
      options_.first_step = 1;
      auto loader =
          Loader::Create({.dataset = &images,
                          .sampler = {.sample_count = images.count,
                                      .global_batch = 10,
                                      .rank = rank,
                                      .world_size = 3,
                                      .seed = 4,
                                      .order = is_training ? Sampler::Order::kShuffled : Sampler::Order::kSequential},
                          .normalization = NormalizationFromSums(PixelSums(sets.train, 0, sets.train.count)),
                          .augment = is_training ? Augment::kCropFlip : Augment::kNone,
                          .first_step = 1,
                          .end_step = 12});
      ASSERT_TRUE(loader.ok()) << loader.status();
      st_loader* const ours = Open();
      for (int step = 1; step < 12; ++step) {
        const Batch& expected = **(*loader)->Next();
        st_batch batch;
        ASSERT_EQ(st_loader_next(ours, &batch), ST_OK);
        EXPECT_EQ(batch.step, step);
        EXPECT_EQ(batch.epoch, expected.plan.epoch);
        EXPECT_EQ(batch.global_count, expected.plan.global_count);
        ASSERT_EQ(batch.count, std::ssize(expected.labels));
        EXPECT_EQ(batch.targets, nullptr);
        EXPECT_THAT(std::vector(batch.labels, batch.labels + batch.count), Pointwise(Eq(), expected.labels));
        EXPECT_THAT(std::vector(batch.images, batch.images + batch.count * 90), Pointwise(Eq(), expected.images));
        EXPECT_EQ(st_loader_give_back(ours, batch.memory), ST_OK);
      }
      st_batch batch;
      EXPECT_EQ(st_loader_next(ours, &batch), ST_OK);
      EXPECT_EQ(batch.memory, nullptr);
      EXPECT_EQ(st_loader_close(ours), ST_OK);
    }
  }
}

TEST_F(StarringDataTest, TwoClassesServeAsABit) {
  EXPECT_EQ(st_dataset_close(dataset_), ST_OK);
  st_dataset_options files = SyntheticOptions();
  files.synthetic_classes = 2;
  files.target = ST_TARGET_BITS;
  ASSERT_EQ(st_dataset_open(&files, &dataset_), ST_OK) << st_data_last_error();
  st_dataset_facts facts;
  ASSERT_EQ(st_dataset_facts_of(dataset_, ST_TEST, &facts), ST_OK);
  EXPECT_EQ(facts.classes, 0);
  EXPECT_EQ(facts.target, ST_TARGET_BITS);
  EXPECT_EQ(facts.target_values, 1);
  options_.dataset = dataset_;
  options_.shuffle = 0;
  st_loader* const loader = Open();
  st_batch batch;
  ASSERT_EQ(st_loader_next(loader, &batch), ST_OK);
  EXPECT_EQ(batch.labels, nullptr);
  ASSERT_EQ(batch.count, 10);
  EXPECT_THAT(std::vector(batch.targets, batch.targets + 10), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_EQ(st_loader_give_back(loader, batch.memory), ST_OK);
  EXPECT_EQ(st_loader_close(loader), ST_OK);
}

TEST_F(StarringDataTest, OtherMeansMayBeGiven) {
  const float mean[] = {0, 0, 0};
  const float deviation[] = {1, 1, 1};
  options_.mean = mean;
  options_.deviation = deviation;
  st_loader* const loader = Open();
  st_batch batch;
  ASSERT_EQ(st_loader_next(loader, &batch), ST_OK);
  const auto [least, most] = std::minmax_element(batch.images, batch.images + batch.count * 90);
  EXPECT_GE(*least, 0);
  EXPECT_LE(*most, 1);
  EXPECT_EQ(st_loader_give_back(loader, batch.memory), ST_OK);
  EXPECT_EQ(st_loader_close(loader), ST_OK);
}

TEST_F(StarringDataTest, ABatchOutlivesLoaderAndDataSet) {
  st_loader* const loader = Open();
  EXPECT_EQ(st_dataset_close(dataset_), ST_OK);
  dataset_ = nullptr;
  st_batch first, second;
  ASSERT_EQ(st_loader_next(loader, &first), ST_OK);
  ASSERT_EQ(st_loader_next(loader, &second), ST_OK);
  const std::vector<float> images(first.images, first.images + first.count * 90);
  EXPECT_EQ(st_loader_close(loader), ST_OK);
  EXPECT_EQ(st_loader_give_back(loader, second.memory), ST_OK);
  EXPECT_EQ(std::memcmp(images.data(), first.images, images.size() * sizeof(float)), 0);
  EXPECT_EQ(st_loader_give_back(loader, first.memory), ST_OK);  // frees the loader, as LeakSanitizer sees
}

TEST_F(StarringDataTest, ALoaderRefusesOptionsThatMakeNoSense) {
  const st_loader_options right = options_;
  const auto refusal = [&](auto change) {
    options_ = right;
    change(options_);
    return Refusal();
  };
  using Options = st_loader_options;
  EXPECT_EQ(refusal([](Options& o) { o.struct_bytes = 8; }),
            "the caller's st_loader_options has 8 bytes, the library's 104: use library and caller of one release");
  EXPECT_EQ(refusal([](Options& o) { o.dataset = nullptr; }), "the loader has no data set");
  EXPECT_EQ(refusal([](Options& o) { o.set = 2; }), "set is 2, it must be from 0 to 1");
  EXPECT_EQ(refusal([](Options& o) { o.augment = -1; }), "augment is -1, it must be from 0 to 1");
  EXPECT_EQ(refusal([](Options& o) { o.global_batch = 0; }), "global_batch is 0, it must be from 1 to 16777216");
  EXPECT_EQ(refusal([](Options& o) { o.rank = 1; }), "rank is 1, it must be from 0 to 0");
  EXPECT_EQ(refusal([](Options& o) { o.world_size = 0; }), "world_size is 0, it must be from 1 to 1024");
  EXPECT_EQ(refusal([](Options& o) { o.first_step = 13; }), "end_step is 12, it must be from 13 to 1000000000000");
  EXPECT_EQ(refusal([](Options& o) { o.threads = 0; }), "loader threads is 0, expected 1 to 256");
  EXPECT_EQ(refusal([](Options& o) { o.prefetch_depth = 65; }), "loader prefetch_depth is 65, expected 0 to 64");
  EXPECT_THAT(refusal([](Options& o) { o.deadline_s = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("deadline_s is nan, it must be above 0"));
  const float zeros[] = {0, 0, 0};
  EXPECT_EQ(refusal([&](Options& o) { o.mean = zeros; }), "mean and deviation belong together: give both or none");
  EXPECT_EQ(refusal([&](Options& o) { o.mean = o.deviation = zeros; }),
            "the deviation of channel 0 is 0, it must be above 0");
}

TEST(StarringDatasetTest, RefusesWhatIsNotThere) {
  st_dataset* dataset = nullptr;
  st_dataset_options options = SyntheticOptions();
  options.name = "imagenet";
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_THAT(st_data_last_error(), HasSubstr("give one of mnist, fashion-mnist, "));
  const std::string folder = testing::TempDir();
  options.name = "mnist";
  options.data_dir = folder.c_str();
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_THAT(st_data_last_error(), HasSubstr("needs train-images-idx3-ubyte"));
  std::ofstream(folder + "/train-images-idx3-ubyte") << "no images";
  std::ofstream(folder + "/train-labels-idx1-ubyte") << "no labels";
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_THAT(st_data_last_error(), HasSubstr("train-labels-idx1-ubyte begins with"));
  options = SyntheticOptions();
  options.target = ST_TARGET_NUMBERS;
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_THAT(st_data_last_error(), HasSubstr("has labels that are 10 classes"));
  options.target = ST_TARGET_CLASS;
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_OK);
  EXPECT_EQ(st_dataset_close(dataset), ST_OK);
  dataset = nullptr;
  options.target = ST_TARGET_BITS + 1;
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_STREQ(st_data_last_error(), "target is 4, it must be from 0 to 3");
  options.struct_bytes = 4;
  EXPECT_EQ(st_dataset_open(&options, &dataset), ST_INVALID);
  EXPECT_EQ(st_dataset_open(nullptr, &dataset), ST_INVALID);
  EXPECT_EQ(dataset, nullptr);
  EXPECT_EQ(st_dataset_close(nullptr), ST_OK);
}

TEST(StarringDatasetTest, NullPointersAreRefused) {
  st_batch batch;
  st_loader* loader = nullptr;
  st_dataset_facts facts;
  EXPECT_EQ(st_dataset_facts_of(nullptr, ST_TRAIN, &facts), ST_INVALID);
  EXPECT_EQ(st_loader_open(nullptr, &loader), ST_INVALID);
  EXPECT_EQ(st_loader_next(nullptr, &batch), ST_INVALID);
  EXPECT_EQ(st_loader_give_back(nullptr, &batch), ST_INVALID);
  EXPECT_EQ(st_loader_close(nullptr), ST_OK);
}

TEST(StarringDatasetTest, EachThreadHasItsOwnError) {
  EXPECT_EQ(st_loader_next(nullptr, nullptr), ST_INVALID);
  std::thread([] { EXPECT_STREQ(st_data_last_error(), ""); }).join();
  EXPECT_THAT(st_data_last_error(), HasSubstr("is null"));
}

}  // namespace
}  // namespace starring
