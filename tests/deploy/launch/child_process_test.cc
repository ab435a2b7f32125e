#include "deploy/launch/child_process.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using Lists = std::vector<std::vector<int>>;

const std::vector<int> kEight = {0, 1, 2, 3, 8, 9, 10, 11};
const std::vector<int> kTwo = {4, 5};

TEST(PlanCoresTest, WorkersShareAllCoresAndServersRoam) {
  const CorePlan plan = PlanCores(kEight, {.worker_count = 3, .server_count = 2});
  EXPECT_THAT(plan.workers, ElementsAre(std::vector{0, 1}, std::vector{2, 3}, std::vector{8, 9}));
  EXPECT_THAT(plan.servers, ElementsAre(std::vector{10, 11}, std::vector{10, 11}));
  const CorePlan even = PlanCores(kEight, {.worker_count = 4, .server_count = 1});
  EXPECT_THAT(even.servers, ElementsAre(kEight));
}

TEST(PlanCoresTest, ServersThatAskGetTheirsFromTheBack) {
  const CorePlan plan = PlanCores(kEight, {.worker_count = 2, .server_count = 2, .cores_per_server = 1});
  EXPECT_THAT(plan.workers, ElementsAre(std::vector{0, 1, 2}, std::vector{3, 8, 9}));
  EXPECT_THAT(plan.servers, ElementsAre(std::vector{11}, std::vector{10}));
}

TEST(PlanCoresTest, GoesRoundWhenCoresAreFew) {
  const CorePlan plan = PlanCores(kTwo, {.worker_count = 5, .server_count = 1, .cores_per_server = 7});
  EXPECT_EQ(plan.workers, (Lists{{4}, {5}, {4}, {5}, {4}}));
  EXPECT_EQ(plan.servers, (Lists{{4, 5}}));
  EXPECT_EQ(PlanCores(kTwo, {.worker_count = 1, .cores_per_worker = 9}).workers, (Lists{{4, 5}}));
}

TEST(PlanCoresTest, WorkersShareTheQuotaAndNoCoreStaysUnused) {
  const CorePlan plan = PlanCores(kEight, {.worker_count = 2, .server_count = 1, .quota = 4.5});
  EXPECT_EQ(plan.workers, (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan.servers, (Lists{{8, 9, 10, 11}}));
  // A quota of half a core counts as one, and each worker has a core where there are so many.
  EXPECT_EQ(PlanCores(kEight, {.worker_count = 2, .quota = 0.5}).workers, (Lists{{0}, {1}}));
  EXPECT_EQ(PlanCores(kTwo, {.worker_count = 1, .quota = 0.5}).workers, (Lists{{4}}));
  EXPECT_EQ(PlanCores(kEight, {.worker_count = 2, .cores_per_worker = 3, .quota = 1}).workers,
            (Lists{{0, 1, 2}, {3, 8, 9}}));
  EXPECT_EQ(PlanCores(kEight, {.worker_count = 2, .server_count = 1, .cores_per_server = 2, .quota = 4}).workers,
            (Lists{{0}, {1}}));
}

TEST(PlanCoresTest, OneCoreForAll) {
  const CorePlan plan = PlanCores(std::vector<int>{7}, {.worker_count = 2, .server_count = 2});
  EXPECT_EQ(plan.workers, (Lists{{7}, {7}}));
  EXPECT_EQ(plan.servers, (Lists{{7}, {7}}));
}

TEST(CoreListTest, RangesForPeople) {
  EXPECT_EQ(CoreListText(kEight), "0-3,8-11");
  EXPECT_EQ(CoreListText(std::vector<int>{3}), "3");
  EXPECT_EQ(CoreListText(std::vector<int>{1, 2, 5}), "1-2,5");
}

TEST(CoreListTest, ListsComeBack) {
  const Lists lists = {{0, 1, 2}, {7}, {}};
  EXPECT_EQ(CoreListsText(lists), "0,1,2;7;");
  EXPECT_EQ(ParseCoreLists("0,1,2;7;"), lists);
}

TEST(AllowedCoresTest, IsNotEmpty) { EXPECT_FALSE(AllowedCores().empty()); }

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
