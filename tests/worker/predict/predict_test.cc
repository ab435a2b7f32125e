#include "worker/predict/predict.h"

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/common/transport/in_memory_transport.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/model/network_graph.h"

namespace starring {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int64_t kColumns = 2, kOutputs = 7;
constexpr char kLayers[] = "layer { name: \"fc\" dense {} }";

// Numbers in two columns, and a label.
Dataset MakeSet(const std::vector<float>& numbers, const std::vector<uint16_t>& labels) {
  Dataset set{.count = std::ssize(labels),
              .height = 1,
              .width = 1,
              .channels = kColumns,
              .classes = kOutputs,
              .type = FieldType::kNumbers,
              .images = std::vector<uint8_t>(numbers.size() * sizeof(float)),
              .labels = labels};
  std::memcpy(set.images.data(), numbers.data(), set.images.size());
  return set;
}

class PredictTest : public ::testing::Test {
 protected:
  PredictTest() {
    std::string pattern = ::testing::TempDir() + "/predict.XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    dir_ = pattern;
    device_ = CreateCpuDevice({}).value();
    data_.test = MakeSet({1, 0, 3, 0, 0, 5}, {0, 1, 6});
    data_.class_names = {"a", "b", "c", "d", "e", "f", "g"};
  }
  ~PredictTest() override { fs::remove_all(dir_); }

  // Output c of (x, y), both normalised, is c x - c c y / 8 + the bias. The model divides x - 1 by 2.
  void Write(int64_t step, float bias_of_1 = 0, const std::string& layers = kLayers) {
    const auto network =
        Network::Create(*LayerFile::Parse(kLayers, "test"),
                        {.height = 1, .width = 1, .channels = 2, .outputs = 7, .batch_max = 1}, device_.get());
    const Layout& layout = (*network)->layout();
    Checkpoint checkpoint{.step = step,
                          .config = config_,
                          .model = {.layer_file = layers,
                                    .height = 1,
                                    .width = 1,
                                    .channels = kColumns,
                                    .takes_numbers = true,
                                    .outputs = kOutputs,
                                    .mean = {1, 0},
                                    .deviation = {2, 1},
                                    .class_names = names_},
                          .parameters = std::vector<float>(static_cast<size_t>(layout.element_count())),
                          .state_names = {"momentum_buffer"},
                          .state = {std::vector<float>(static_cast<size_t>(layout.element_count()))}};
    float* const weight = checkpoint.parameters.data() + layout.tensors()[0].range.begin;
    float* const bias = checkpoint.parameters.data() + layout.tensors()[1].range.begin;
    for (int64_t c = 0; c < kOutputs; ++c) {
      weight[2 * c] = static_cast<float>(c);
      weight[2 * c + 1] = -static_cast<float>(c * c) / 8;
    }
    bias[1] = bias_of_1;
    ASSERT_TRUE(WriteCheckpoint(dir_, layout, checkpoint).ok());
  }

  absl::StatusOr<Evaluation> Ask(const std::string& place, const std::string& out = "") {
    return Predict({.checkpoint = place, .data = &data_, .out = out, .device = device_.get()});
  }
  std::string Refusal() { return std::string(Ask(dir_).status().message()); }

  std::string dir_;
  std::map<std::string, std::string> config_;
  std::vector<std::string> names_ = {"a", "b", "c", "d", "e", "f", "g"};
  std::unique_ptr<Device> device_;
  TrainAndTest data_;
};

TEST_F(PredictTest, MetricsAndProbabilitiesAreThoseOfTheOutputs) {
  Write(3);
  const std::string out = dir_ + "/out.csv";
  const auto evaluation = Ask(dir_, out);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_THAT(evaluation->folder, EndsWith("/step-000000003"));
  EXPECT_EQ(evaluation->samples, 3);
  // (0, 0): all outputs are 0, and the first wins. (1, 0): c, and 1 is the sixth. (-0.5, 5): falls with c.
  EXPECT_DOUBLE_EQ(evaluation->quality.accuracy, 1.0 / 3);
  EXPECT_DOUBLE_EQ(evaluation->quality.top5, 1.0 / 3);
  double loss = std::log(7), of_exponentials = 0, second = 0;
  for (int c = 0; c < 7; ++c) of_exponentials += std::exp(c);
  for (int c = 0; c < 7; ++c) second += std::exp(-0.5 * c - 5 * c * c / 8.0);
  loss += std::log(of_exponentials) - 1 + std::log(second) + 3 + 5 * 36 / 8.0;
  EXPECT_NEAR(evaluation->quality.loss_mean, loss / 3, 1e-5);
  std::ifstream file(out);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "index,predicted,name,p0,p1,p2,p3,p4,p5,p6");
  std::getline(file, line);
  EXPECT_THAT(line, HasSubstr("0,0,a,0.142857"));
  std::getline(file, line);
  EXPECT_THAT(line, HasSubstr("1,6,g,0.0015"));
}

TEST_F(PredictTest, TheNewestWholeCheckpointAnswers) {
  Write(3);
  Write(9, /*bias_of_1=*/100);
  EXPECT_THAT(Ask(dir_)->folder, EndsWith("/step-000000009"));
  EXPECT_DOUBLE_EQ(Ask(dir_)->quality.accuracy, 1.0 / 3);  // of the second sample now
  EXPECT_THAT(Ask(dir_ + "/step-000000003")->folder, EndsWith("/step-000000003"));
  fs::resize_file(dir_ + "/step-000000009/model.safetensors", 40);
  EXPECT_THAT(Ask(dir_)->folder, EndsWith("/step-000000003"));
  // The optimizer's state is not needed.
  fs::remove(dir_ + "/step-000000003/optimizer.safetensors");
  EXPECT_TRUE(Ask(dir_).ok());
  fs::resize_file(dir_ + "/step-000000003/manifest.json", 40);
  EXPECT_EQ(Ask(dir_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Ask(dir_ + "/step-000000003").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PredictTest, MoreThanOneBatch) {
  Write(1);
  std::vector<float> numbers;
  std::vector<uint16_t> labels;
  for (int i = 0; i < 600; ++i) {
    numbers.insert(numbers.end(), {i % 3 == 0 ? 3.0f : -1.0f, 0.0f});
    labels.push_back(i % 2 == 0 ? 6 : 0);
  }
  data_.test = MakeSet(numbers, labels);
  EXPECT_DOUBLE_EQ(Ask(dir_)->quality.accuracy, 0.5);  // the classes are 6, 0, 0, 6, 0, 0, ...
}

// 1,200 samples in five blocks, whose losses are so different that another order of their sum has other bits.
class RanksTest : public PredictTest {
 protected:
  RanksTest() {
    std::vector<float> numbers;
    std::vector<uint16_t> labels;
    for (int i = 0; i < 1200; ++i) {
      numbers.insert(numbers.end(), {static_cast<float>(i % 11) / 7 * std::pow(9.0f, static_cast<float>(i / 256)),
                                     static_cast<float>(i % 13) / 3});
      labels.push_back(static_cast<uint16_t>(i % 7));
    }
    data_.test = MakeSet(numbers, labels);
  }

  // As ranks of a ring; rank r has data[r].
  std::vector<absl::StatusOr<Evaluation>> AskRanks(const std::vector<const TrainAndTest*>& data) {
    const int world_size = static_cast<int>(data.size());
    InMemoryNetwork network(world_size, /*seed=*/1);
    std::vector<absl::StatusOr<Evaluation>> evaluations(data.size());
    const auto ask = [&](int rank) {
      const auto device = CreateCpuDevice({}).value();
      std::array<float, EvaluatingRanks::kStartValues> start_values = {};
      PeerExchange exchange(network.CreateTransport(rank), PeerExchange::Options{});
      evaluations[rank] =
          Predict({.checkpoint = dir_,
                   .data = data[rank],
                   .out = "",
                   .device = device.get(),
                   .ranks = {.exchange = &exchange,
                             .job = {.rank = rank, .world_size = world_size, .agreed_flags = DatasetFacts(*data[rank])},
                             .bucket_world_size = world_size,
                             .start_values = start_values}});
      EXPECT_TRUE(exchange.Release());
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(ask, rank);
    for (std::thread& rank : ranks) rank.join();
    return evaluations;
  }
};

TEST_F(RanksTest, AnyNumberHasTheSameBits) {
  int64_t step = 0;
  for (const char* loss : {"softmax", "bce", "mse"}) {
    SCOPED_TRACE(loss);
    const std::string layers = absl::StrCat(kLayers, "loss { ", loss, " {} }");
    Write(++step, 0, layers);
    Dataset& test = data_.test;
    test.target = TargetOf(LossOf(LayerFile::Parse(layers, "test").value()).kind);
    if (test.target != TargetType::kClass && test.targets.empty()) {
      test.target_values = kOutputs;
      for (const uint16_t label : std::exchange(test.labels, {})) {
        for (int c = 0; c < kOutputs; ++c) test.targets.push_back(c == label ? 1 : 0);
      }
    }
    const Quality alone = Ask(dir_)->quality;
    for (const int world_size : {1, 2, 3, 4, 7}) {  // the last has more ranks than blocks
      SCOPED_TRACE(world_size);
      for (const auto& evaluation : AskRanks(std::vector(static_cast<size_t>(world_size), &std::as_const(data_)))) {
        ASSERT_TRUE(evaluation.ok()) << evaluation.status();
        const Quality& quality = evaluation->quality;
        EXPECT_EQ(quality.loss_mean, alone.loss_mean);
        EXPECT_EQ(quality.accuracy, alone.accuracy);
        EXPECT_EQ(quality.top5, alone.top5);
        EXPECT_EQ(quality.auc, alone.auc);
        EXPECT_EQ(quality.rmse, alone.rmse);
        EXPECT_EQ(quality.r2, alone.r2);
        EXPECT_EQ(quality.confusion, alone.confusion);
      }
    }
  }
}

TEST_F(RanksTest, AllOfThemEndIfOneHasOtherSamplesOrFails) {
  Write(1);
  TrainAndTest other = data_;
  other.test.images_crc32c = 1;
  for (const auto& evaluation : AskRanks({&data_, &data_, &other})) {
    EXPECT_THAT(evaluation.status().message(), AllOf(HasSubstr("rank 2 has data.test=1200"), HasSubstr("--data_dir")));
  }
  // Sample 1023 is in the block of the last rank.
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(data_.test.images.data() + 1023 * kColumns * sizeof(float), &infinity, sizeof(float));
  const auto evaluations = AskRanks({&data_, &data_});
  EXPECT_THAT(evaluations[0].status().message(), AllOf(HasSubstr("rank 1 gave up"), HasSubstr("for sample 1023 is")));
  EXPECT_THAT(evaluations[1].status().message(), HasSubstr("for sample 1023 is"));
}

TEST_F(PredictTest, ALabelMeansTheClassOfItsName) {
  Write(1);
  const double loss = Ask(dir_)->quality.loss_mean;
  // The same labels, counted otherwise.
  data_.class_names = {"g", "b", "a"};
  data_.test.labels = {2, 1, 0};
  data_.test.classes = 3;
  EXPECT_DOUBLE_EQ(Ask(dir_)->quality.loss_mean, loss);
  // Numbers are compared by value.
  names_ = {"-1", "0", "1", "2", "3", "4", "0.5"};
  Write(2);
  data_.class_names = {"5e-1", "0.0", "-1.0"};
  EXPECT_DOUBLE_EQ(Ask(dir_)->quality.loss_mean, loss);
  names_ = {"a", "b", "c", "d", "e", "f", "g"};
  Write(3);
  data_.class_names = {"g", "x", "a"};
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("the data have the label x, which the model in"),
                               HasSubstr("with its 7 classes does not know")));
  // A label that no sample has does not matter.
  data_.test.labels = {2, 2, 0};
  EXPECT_TRUE(Ask(dir_).ok());
}

// The outputs are those of the class model.
TEST_F(PredictTest, NumbersAndBitsAreComparedWithTargets) {
  Write(1, 0, std::string(kLayers) + "loss { mse {} }");
  EXPECT_EQ(InputOf(dir_).target, TargetType::kNumbers);
  EXPECT_THAT(Refusal(), HasSubstr("compares with 7 numbers: give the labels as for its training"));
  Dataset& test = data_.test;
  test.target = TargetType::kNumbers;
  test.target_values = kOutputs;
  test.labels.clear();
  // Those of (1, 0), which the second sample has.
  for (int i = 0; i < 21; ++i) test.targets.push_back(static_cast<float>(i % 7));
  const std::string out = dir_ + "/out.csv";
  const auto numbers = Ask(dir_, out);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  double squares = 0;
  for (int c = 0; c < 7; ++c) squares += c * c + std::pow(1.5 * c + 5 * c * c / 8.0, 2);
  EXPECT_NEAR(numbers->quality.loss_mean, squares / 7 / 3, 1e-5);
  std::ifstream file(out);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "index,y0,y1,y2,y3,y4,y5,y6");
  std::getline(file, line);
  std::getline(file, line);
  EXPECT_EQ(line, "1,0,1,2,3,4,5,6");

  Write(2, 0, std::string(kLayers) + "loss { bce {} }");
  EXPECT_EQ(InputOf(dir_).target, TargetType::kBits);
  test.target = TargetType::kBits;
  for (size_t i = 0; i < test.targets.size(); ++i) test.targets[i] = i > 7 && i < 14 ? 1.0f : 0.0f;
  const auto bits = Ask(dir_, out);
  ASSERT_TRUE(bits.ok()) << bits.status();
  EXPECT_DOUBLE_EQ(bits->quality.accuracy, 1);  // outputs of 0 are bits of 0
  EXPECT_DOUBLE_EQ(bits->quality.auc, 1);
  std::ifstream bits_file(out);
  std::getline(bits_file, line);
  EXPECT_EQ(line, "index,p0,p1,p2,p3,p4,p5,p6");
  std::getline(bits_file, line);
  EXPECT_EQ(line, "0,0.5,0.5,0.5,0.5,0.5,0.5,0.5");
}

TEST_F(PredictTest, ColumnsAreTheModels) {
  EXPECT_EQ(InputOf(dir_).columns, 0);
  Write(1);
  EXPECT_EQ(InputOf(dir_).columns, kColumns);
}

TEST_F(PredictTest, AnotherSplitIsRefused) {
  const auto ask = [&](bool is_split) {
    return Predict({.checkpoint = dir_, .data = &data_, .is_split = is_split, .out = "", .device = device_.get()});
  };
  data_.train = data_.test;
  config_ = {{"data.train", DatasetFacts(data_)[0].second}, {"data.test", "other"}};
  Write(1);
  EXPECT_THAT(ask(false)->note,
              AllOf(HasSubstr("not the data of the training: data.test is 3 images"), HasSubstr("it was other")));
  EXPECT_THAT(ask(true).status().message(), HasSubstr("give --test_fraction and --split_seed as then"));
  config_["data.test"] = DatasetFacts(data_)[1].second;
  Write(2);
  EXPECT_EQ(ask(true)->note, "");
}

TEST_F(PredictTest, OutputsThatAreNotFiniteAreRefused) {
  Write(1);
  data_.test = MakeSet({1, 0, 3e38f, 3e38f}, {0, 1});
  EXPECT_THAT(Refusal(), HasSubstr("an output of the model for sample 1 is "));
}

TEST_F(PredictTest, AStopLeavesNoFile) {
  Write(1);
  const std::string out = dir_ + "/out.csv";
  const auto asked =
      Predict({.checkpoint = dir_, .data = &data_, .out = out, .device = device_.get(), .stop = [] { return true; }});
  EXPECT_EQ(asked.status().code(), absl::StatusCode::kCancelled);
  for (const auto& entry : fs::directory_iterator(dir_)) EXPECT_THAT(entry.path().string(), HasSubstr("/step-"));
}

TEST_F(PredictTest, RefusesDataOfAnotherShape) {
  EXPECT_THAT(Refusal(), HasSubstr("holds no checkpoint: give a run's --checkpoint_dir"));
  Write(1);
  data_.class_names.clear();
  EXPECT_THAT(Refusal(), HasSubstr("the data have the label 0, which the model in"));
  data_.test.channels = 1;
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("samples of 1 x 1 x 1 numbers, the model in"), HasSubstr("takes 1 x 1 x 2 numbers")));
  data_.test.channels = 2;
  data_.test.type = FieldType::kPixels;
  EXPECT_THAT(Refusal(), HasSubstr("samples of 1 x 1 x 2 pixels"));
}

TEST_F(PredictTest, RefusesAModelThatCannotBe) {
  Write(1, 0, "layer { name: \"fc\" dense { units: 3 } }");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("layer file:1:"), HasSubstr("fc")));
  Write(1);
  const std::string path = dir_ + "/step-000000001/manifest.json";
  std::ifstream in(path);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto rewrite = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    ASSERT_NE(text.find(from), std::string::npos) << text;
    std::ofstream(path) << text.replace(text.find(from), from.size(), to);
  };
  rewrite("\"model\"", "\"other\"");
  EXPECT_THAT(Refusal(), HasSubstr("was written by a version that kept no model"));
  rewrite("\"deviation\"", "\"other\"");
  EXPECT_THAT(Refusal(), HasSubstr("has a model of 1 x 1 x 2 values, 7 outputs, 2 means and 0 deviations, expected"));
}

}  // namespace
}  // namespace starring
