#include "common/arithmetic/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

struct TorchCase {
  std::string name;
  OptimizerConfig config = {};
  float learning_rate = 0.1f;
  std::vector<float> expected;
};

// From /usr/bin/python3 tests/common/arithmetic/optimizer_reference.py, torch 1.13.1.
const std::vector<TorchCase>& TorchCases() {
  static const auto* cases = new std::vector<TorchCase>{
      {.name = "sgd",
       .expected = {-0.787500024f, -0.424999952f, -0.200000003f, -0.112500004f, 0.25f, 0.612500072f, 0.699999988f,
                    0.924999952f}},
      {.name = "sgd, decay",
       .config = {.weight_decay = 0.01},
       .expected = {-0.783894658f, -0.422592491f, -0.198789909f, -0.112212889f, 0.248677596f, 0.609842718f,
                    0.696419716f, 0.920222342f}},
      {.name = "momentum",
       .config = {.momentum = 0.9},
       .expected = {-0.689681292f, -0.345552444f, -0.17245999f, -0.338456213f, 0.307498723f, 0.741841257f, 0.575845063f,
                    0.748937488f}},
      {.name = "momentum, decay",
       .config = {.momentum = 0.9, .weight_decay = 0.01},
       .expected = {-0.680693805f, -0.339033246f, -0.169389695f, -0.337331772f, 0.303933412f, 0.734689534f,
                    0.566747367f, 0.736390948f}},
      {.name = "nesterov, decay",
       .config = {.momentum = 0.9, .nesterov = true, .weight_decay = 0.01},
       .expected = {-0.722176731f, -0.277879655f, -0.126408055f, -0.414808482f, 0.29693678f, 0.82053709f, 0.532136679f,
                    0.683608294f}},
      {.name = "adamw",
       .config = {.kind = OptimizerKind::kAdamW},
       .learning_rate = 0.01f,
       .expected = {-0.736621559f, -0.495667815f, -0.23700805f, -0.0311152562f, 0.248854861f, 0.526081085f,
                    0.728685796f, 0.978185773f}},
      {.name = "adamw, decay",
       .config = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6},
       .learning_rate = 0.01f,
       .expected = {-0.735732794f, -0.491717011f, -0.235998765f, -0.0298086945f, 0.246894494f, 0.523199141f,
                    0.726536155f, 0.97341001f}}};
  return *cases;
}

std::vector<InstructionSet> Sets() {
  std::vector<InstructionSet> sets;
  for (int i = 0; i <= static_cast<int>(BestInstructionSet()); ++i) sets.push_back(static_cast<InstructionSet>(i));
  return sets;
}

// An optimizer with its arrays.
struct Training {
  Training(const OptimizerConfig& of_config, std::vector<float> start)
      : config(of_config), parameters(std::move(start)) {
    state.assign(StateVectorCount(config), std::vector<float>(parameters.size()));
  }
  void Step(std::span<const float> gradient, float learning_rate, InstructionSet set) {
    std::vector<std::span<float>> spans(state.begin(), state.end());
    ApplyOptimizer(config,
                   {.learning_rate = learning_rate,
                    .update = ++update,
                    .gradient = gradient,
                    .parameters_in = parameters,
                    .parameters_out = parameters,
                    .state = spans},
                   set);
  }
  OptimizerConfig config;
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;
  int64_t update = 0;
};

std::vector<float> Random(int64_t count, uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

TEST(OptimizerTest, AgreesWithTorch) {
  for (const TorchCase& torch : TorchCases()) {
    SCOPED_TRACE(torch.name);
    std::vector<float> start(8);
    for (int i = 0; i < 8; ++i) start[i] = static_cast<float>(i - 3) / 4;
    Training run(torch.config, start);
    for (int step = 0; step < 5; ++step) {
      std::vector<float> gradient(8);
      for (int i = 0; i < 8; ++i) gradient[i] = static_cast<float>((i * 7 + step * 5) % 11 - 5) / 8;
      run.Step(gradient, torch.learning_rate, BestInstructionSet());
    }
    // PyTorch fuses multiplications into additions where the CPU can; we never do.
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(run.parameters[i], torch.expected[i], 2.5e-7f) << i;
  }
}

TEST(OptimizerTest, EveryInstructionSetGivesTheSameBits) {
  const int64_t count = 1037;
  for (const TorchCase& torch : TorchCases()) {
    SCOPED_TRACE(torch.name);
    std::vector<Training> runs;
    for (const InstructionSet set : Sets()) {
      Training run(torch.config, Random(count, 1));
      for (int step = 0; step < 4; ++step) run.Step(Random(count, 2 + step), torch.learning_rate, set);
      runs.push_back(run);
    }
    for (const Training& run : runs) {
      EXPECT_EQ(std::memcmp(run.parameters.data(), runs[0].parameters.data(), count * sizeof(float)), 0);
      for (size_t i = 0; i < run.state.size(); ++i) EXPECT_EQ(run.state[i], runs[0].state[i]);
    }
  }
}

// Slices, blocks and alignment must not matter: an element alone has the same result as in the middle of a vector.
TEST(OptimizerTest, AnElementDependsOnItselfAlone) {
  const int64_t count = 131;
  for (const TorchCase& torch : TorchCases()) {
    SCOPED_TRACE(torch.name);
    Training whole(torch.config, Random(count, 1));
    std::vector<Training> parts;
    const std::vector<int64_t> cuts = {0, 1, 2, 5, 16, 33, 64, 81, 130, count};
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      parts.emplace_back(
          torch.config, std::vector<float>(whole.parameters.begin() + cuts[c], whole.parameters.begin() + cuts[c + 1]));
    }
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> gradient = Random(count, 2 + step);
      whole.Step(gradient, torch.learning_rate, BestInstructionSet());
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        parts[c].Step(std::span(gradient).subspan(cuts[c], cuts[c + 1] - cuts[c]), torch.learning_rate,
                      BestInstructionSet());
      }
    }
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      EXPECT_EQ(std::memcmp(parts[c].parameters.data(), whole.parameters.data() + cuts[c],
                            (cuts[c + 1] - cuts[c]) * sizeof(float)),
                0)
          << "elements from " << cuts[c];
    }
  }
}

TEST(OptimizerTest, InPlaceAndOutOfPlaceAgreeAndTheInputStays) {
  const int64_t count = 77;
  for (const TorchCase& torch : TorchCases()) {
    SCOPED_TRACE(torch.name);
    const std::vector<float> start = Random(count, 1), gradient = Random(count, 2);
    Training run(torch.config, start);
    run.Step(gradient, torch.learning_rate, BestInstructionSet());
    std::vector<std::vector<float>> state(StateVectorCount(torch.config), std::vector<float>(count));
    const std::vector<std::span<float>> spans(state.begin(), state.end());
    const std::vector<float> in = start;
    std::vector<float> out(count, -1);
    ApplyOptimizer(torch.config, {.learning_rate = torch.learning_rate,
                                  .update = 1,
                                  .gradient = gradient,
                                  .parameters_in = in,
                                  .parameters_out = out,
                                  .state = spans});
    EXPECT_EQ(out, run.parameters);
    EXPECT_EQ(in, start);
    EXPECT_EQ(state, run.state);
  }
}

// The gaps between tensors are exchanged and updated with everything else, and hashed.
TEST(OptimizerTest, GapsStayZero) {
  for (const TorchCase& torch : TorchCases()) {
    Training run(torch.config, std::vector<float>(20));
    for (int step = 0; step < 3; ++step) run.Step(std::vector<float>(20), torch.learning_rate, BestInstructionSet());
    EXPECT_EQ(run.parameters, std::vector<float>(20)) << torch.name;
  }
}

TEST(OptimizerTest, AnEmptySpanIsFine) {
  Training run({.kind = OptimizerKind::kAdamW}, {});
  run.Step({}, 0.1f, BestInstructionSet());
}

TEST(OptimizerTest, StateVectorsHaveTorchsNames) {
  EXPECT_EQ(StateVectorCount({}), 0);
  const OptimizerConfig momentum = {.momentum = 0.9}, adamw = {.kind = OptimizerKind::kAdamW};
  ASSERT_EQ(StateVectorCount(momentum), 1);
  EXPECT_EQ(StateVectorName(momentum, 0), "momentum_buffer");
  ASSERT_EQ(StateVectorCount(adamw), 2);
  EXPECT_EQ(StateVectorName(adamw, 0), "exp_avg");
  EXPECT_EQ(StateVectorName(adamw, 1), "exp_avg_sq");
}

TEST(OptimizerTest, RefusesWhatMakesNoSense) {
  const auto message = [](OptimizerConfig config) {
    const absl::Status status = ValidateOptimizer(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const TorchCase& torch : TorchCases()) EXPECT_TRUE(ValidateOptimizer(torch.config).ok()) << torch.name;
  EXPECT_THAT(message({.momentum = 1}), HasSubstr("momentum is 1, it must be at least 0 and below 1"));
  EXPECT_THAT(message({.momentum = -0.1}), HasSubstr("momentum is -0.1"));
  EXPECT_THAT(message({.momentum = std::nan("")}), HasSubstr("momentum is nan"));
  EXPECT_THAT(message({.nesterov = true}), HasSubstr("above 0 with nesterov"));
  EXPECT_THAT(message({.weight_decay = -1}), HasSubstr("weight_decay is -1"));
  const auto adamw = OptimizerKind::kAdamW;
  EXPECT_THAT(message({.kind = adamw, .beta1 = 1}), HasSubstr("beta1 is 1"));
  EXPECT_THAT(message({.kind = adamw, .beta2 = -1}), HasSubstr("beta2 is -1"));
  EXPECT_THAT(message({.kind = adamw, .epsilon = 1e-60}), HasSubstr("epsilon is 1e-60"));
  EXPECT_THAT(message({.kind = static_cast<OptimizerKind>(7)}), HasSubstr("optimizer kind is 7"));
}

TEST(OptimizerDeathTest, SpansOfDifferentLengthAreAProgrammersError) {
  std::vector<float> eight(8), seven(7);
  const UpdateArgs args = {.gradient = seven, .parameters_in = eight, .parameters_out = eight, .state = {}};
  EXPECT_DEATH(ApplyOptimizer({}, args), "8 vs. 7");
}

}  // namespace
}  // namespace starring
