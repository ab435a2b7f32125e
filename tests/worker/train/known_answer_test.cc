// The known answer depends on everything that decides a leaf's bits, and on nothing else.
#include "worker/train/known_answer.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/arithmetic/instruction_set.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/data/dataset.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

namespace starring {
namespace {

struct Worker {
  WorkerOptions options;
  CpuDeviceOptions device = {.threads = 1};
  std::function<void(TrainAndTest&)> change_data = [](TrainAndTest&) {};

  std::string Answer() const {
    TrainAndTest data = LoadDataset(options.dataset).value();
    change_data(data);
    const std::unique_ptr<Device> cpu = CreateCpuDevice(device).value();
    const NetworkOptions shape{
        .height = 8, .width = 8, .channels = 1, .outputs = 10, .batch_max = 64, .seed = options.seed};
    const LayerFile model = LayerFile::Parse(R"(
        name: "tiny"
        layer { name: "conv" conv2d { out_channels: 4 kernel: 3 padding: 1 } }
        layer { name: "norm" batch_norm {} }
        layer { name: "drop" dropout { rate: 0.5 } }
        layer { name: "fc" dense { units: 10 } })",
                                             "tiny.textproto")
                                .value();
    const std::unique_ptr<Network> network = Network::Create(model, shape, cpu.get()).value();
    std::vector<std::vector<float>> before;
    for (const NetworkBuffer& buffer : network->buffers()) {
      before.emplace_back(buffer.values.begin(), buffer.values.end());
    }
    const absl::StatusOr<KnownAnswer> answer = ComputeKnownAnswer(options, data, network.get());
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->seconds, 0);
    // The answer leaves no trace in the network that trains afterwards.
    for (size_t i = 0; i < before.size(); ++i) {
      const std::span<const float> values = network->buffers()[i].values;
      EXPECT_EQ(before[i], std::vector<float>(values.begin(), values.end()));
    }
    return answer->sha256;
  }
};

Worker Usual() {
  Worker worker;
  worker.options.dataset = {.name = "synthetic",
                            .synthetic_train_count = 100,
                            .synthetic_test_count = 10,
                            .synthetic_height = 8,
                            .synthetic_width = 8};
  worker.options.global_batch = 64;
  worker.options.micro_batches = 8;
  worker.options.world_size = 3;
  return worker;
}

TEST(KnownAnswerTest, IsTheSameForEveryWorker) {
  const std::string usual = Usual().Answer();
  EXPECT_EQ(usual.size(), 64u);
  Worker other = Usual();
  other.options.rank = 2;
  other.options.world_size = 5;
  other.options.loader_threads = 2;
  other.options.prefetch_depth = 3;
  EXPECT_EQ(other.Answer(), usual);
}

TEST(KnownAnswerTest, FindsWhatWouldComputeOtherBits) {
  const std::string usual = Usual().Answer();
  Worker seed = Usual(), batch = Usual(), leaves = Usual(), pixel = Usual(), label = Usual(), augment = Usual();
  seed.options.seed = 2;
  batch.options.global_batch = 72;
  leaves.options.micro_batches = 4;
  pixel.change_data = [](TrainAndTest& data) { data.train.images[17] ^= 128; };
  label.change_data = [](TrainAndTest& data) {
    for (auto& one : data.train.labels) one = static_cast<uint8_t>((one + 1) % 10);
  };
  augment.options.augment = Augment::kCropFlip;
  for (const Worker* const worker : {&seed, &batch, &leaves, &pixel, &label, &augment}) {
    EXPECT_NE(worker->Answer(), usual);
  }
  if (BestInstructionSet() == InstructionSet::kBaseline) GTEST_SKIP() << "this machine has one instruction set";
  Worker isa = Usual();
  isa.device.instruction_set = InstructionSet::kBaseline;
  EXPECT_NE(isa.Answer(), usual);
}

}  // namespace
}  // namespace starring
