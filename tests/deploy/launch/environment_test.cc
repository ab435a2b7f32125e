#include "deploy/launch/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;

TEST(EnvironmentTest, ForgetsOtherLaunchersButKeepsSettings) {
  const Environment environment({"HOME=/root", "SLURM_PROCID=1", "OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=1", "PMI_RANK=1",
                                 "OMPI_MCA_btl=self", "SLURMP=1"});
  EXPECT_THAT(environment.variables(), ElementsAre("HOME=/root", "OMPI_MCA_btl=self", "SLURMP=1"));
}

TEST(EnvironmentTest, DefaultsYieldToTheUser) {
  Environment environment({"A=1", "AB=2"});
  environment.SetDefault("A", "9");
  environment.SetDefault("C", "3");
  environment.Set("AB", "4");
  EXPECT_THAT(environment.variables(), ElementsAre("A=1", "C=3", "AB=4"));
  EXPECT_EQ(environment.Find("B"), nullptr);
}

TEST(EnvironmentTest, AnEmptyValueIsAValue) {
  Environment environment({"A="});
  environment.SetDefault("A", "9");
  EXPECT_THAT(environment.variables(), ElementsAre("A="));
}

}  // namespace
}  // namespace starring
