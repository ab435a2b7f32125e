#include "worker/options/deciding_facts.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kNet[] = R"(
name: "net"
layer { name: "fc1" dense { units: 64 relu: true } }
layer { name: "dr" dropout { rate: 0.5 } }
layer { name: "fc2" dense { units: 10 } }
)";

std::map<std::string, std::string> FactsOf(const absl::StatusOr<LayerFile>& layers,
                                           const LauncherEnvironment& environment = {}, uint64_t seed = 1) {
  EXPECT_TRUE(layers.ok()) << layers.status();
  const TrainAndTest data =
      LoadDataset({.name = "synthetic", .synthetic_train_count = 3, .synthetic_test_count = 2, .seed = seed}).value();
  const Facts facts = DecidingFacts(*layers, data, environment);
  return {facts.begin(), facts.end()};
}

TEST(DecidingFactsTest, AFileIsItsContentAndNotItsPath) {
  const auto here = FactsOf(LayerFile::Parse(kNet, "/here/net.textproto"));
  const auto there = FactsOf(LayerFile::Parse(std::string("# A copy.\n") + kNet, "/there/other.textproto"));
  EXPECT_EQ(here, there);
  EXPECT_THAT(here.at("model"), StartsWith("a layer file with digest "));
}

// The tensors of these have the same names and shapes.
TEST(DecidingFactsTest, WhatIsNoShapeCountsToo) {
  std::string other = kNet;
  other.replace(other.find("0.5"), 3, "0.1");
  const std::string model = FactsOf(LayerFile::Parse(kNet, "net.textproto")).at("model");
  EXPECT_NE(FactsOf(LayerFile::Parse(other, "net.textproto")).at("model"), model);
  other = kNet;
  other.replace(other.find(" relu: true"), 11, "");
  EXPECT_NE(FactsOf(LayerFile::Parse(other, "net.textproto")).at("model"), model);
}

TEST(DecidingFactsTest, AShippedModelAndACopyAreOne) {
  const auto named = FactsOf(LayerFile::Load("logreg"));
  EXPECT_THAT(named.at("model"), StartsWith("logreg with digest "));
  for (const ShippedModel& shipped : ShippedModels()) {
    const std::string copy = FactsOf(LayerFile::Parse(shipped.text, "copy.textproto")).at("model");
    EXPECT_EQ(copy == named.at("model"), shipped.name == "logreg");
  }
}

// A checkpoint may have been written when the file said the number of outputs.
TEST(DecidingFactsTest, OutputsThatAreLeftToTheDataAreThoseOfTheData) {
  std::string left = kNet;
  left.replace(left.find("units: 10"), 9, "");
  const std::string model = FactsOf(LayerFile::Parse(kNet, "net.textproto")).at("model");
  EXPECT_EQ(FactsOf(LayerFile::Parse(left, "net.textproto")).at("model"), model);
  left.replace(left.find("dense {  }"), 10, "dense { units: 11 }");
  EXPECT_NE(FactsOf(LayerFile::Parse(left, "net.textproto")).at("model"), model);
}

TEST(DecidingFactsTest, DataAndEnvironmentAreThere) {
  const auto facts = FactsOf(LayerFile::Load("logreg"), {.arithmetic = {{"ONEDNN_MAX_CPU_ISA", "AVX2"}}});
  EXPECT_EQ(facts.at("environment.ONEDNN_MAX_CPU_ISA"), "AVX2");
  EXPECT_NE(facts.at("data.train"), FactsOf(LayerFile::Load("logreg"), {}, 2).at("data.train"));
  EXPECT_NE(facts.at("data.train"), facts.at("data.test"));
  const auto odd = FactsOf(LayerFile::Load("logreg"), {.arithmetic = {{"X", std::string(5000, '\n')}}});
  EXPECT_THAT(odd.at("environment.X"), Not(HasSubstr("\n")));
  EXPECT_LE(odd.at("environment.X").size(), 400u);
}

}  // namespace
}  // namespace starring
