#include "common/job/cells.h"

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> NamesOf(const CellPattern& pattern) {
  std::vector<std::string> names;
  for (const Cell& cell : Cells()) {
    CellPattern same = pattern;
    same.sync = pattern.sync.value_or(cell.sync);
    same.transport = pattern.transport.value_or(cell.transport);
    same.same_host = pattern.same_host.value_or(cell.same_host);
    same.server_count = pattern.server_count.value_or(cell.placement == Placement::kServers ? 1 : 0);
    if (FindCell(same) == &cell) names.emplace_back(cell.name);
  }
  return names;
}

const Cell& Named(const std::string& name) {
  for (const Cell& cell : Cells()) {
    if (cell.name == name) return cell;
  }
  ADD_FAILURE() << "no cell " << name;
  return Cells().front();
}

TEST(CellsTest, NoTwoAreAlike) {
  std::set<std::string> names;
  std::set<std::tuple<Sync, Placement, TransportKind, SameHost>> ways;
  for (const Cell& cell : Cells()) {
    EXPECT_TRUE(names.insert(cell.name).second) << cell.name;
    EXPECT_TRUE(ways.insert({cell.sync, cell.placement, cell.transport, cell.same_host}).second) << cell.name;
  }
}

TEST(CellsTest, FindsByAllThatIsAsked) {
  EXPECT_THAT(NamesOf({.sync = Sync::kRing, .same_host = SameHost::kSocket}), ElementsAre("ring", "ring-tcp"));
  EXPECT_THAT(NamesOf({.sync = Sync::kRing, .same_host = SameHost::kSharedMemory}),
              ElementsAre("ring-shm", "ring-tcp-shm"));
  EXPECT_THAT(NamesOf({.sync = Sync::kRing, .same_host = SameHost::kGpuMemory}),
              ElementsAre("ring-mpi-gpu", "ring-tcp-gpu"));
  EXPECT_THAT(NamesOf({.server_count = 3, .same_host = SameHost::kSocket}), ElementsAre("star-servers-tcp", "star"));
  EXPECT_THAT(NamesOf({.sync = Sync::kStar, .server_count = 0, .transport = TransportKind::kTcp}),
              ElementsAre("star-tcp", "star-tcp-shm", "star-tcp-gpu"));
  EXPECT_THAT(NamesOf({.sync = Sync::kStar, .server_count = 0, .same_host = SameHost::kSharedMemory}),
              ElementsAre("star-mpi-shm", "star-tcp-shm"));
  EXPECT_THAT(NamesOf({.contact = Contact::kServers}), ElementsAre("star", "star-shm"));
  EXPECT_THAT(NamesOf({.may = Cell::kTree | Cell::kGpuMemory}), ElementsAre("star-mpi"));
  EXPECT_EQ(FindCell({.sync = Sync::kRing, .transport = TransportKind::kGrpc}), nullptr);
  EXPECT_EQ(FindCell({.sync = Sync::kRing, .server_count = 1}), nullptr);
}

TEST(CellsTest, WhatAFewMay) {
  EXPECT_THAT(NamesOf({.may = Cell::kElastic}), ElementsAre("star", "star-shm"));
  EXPECT_THAT(NamesOf({.may = Cell::kGpuMemory}), ElementsAre("ring", "star-mpi"));
  EXPECT_THAT(NamesOf({.may = Cell::kSiteCertificates}), ElementsAre("star", "star-shm"));
  for (const Cell& cell : Cells()) {
    EXPECT_EQ(cell.May(Cell::kDeterministic), cell.sync != Sync::kMpi && cell.sync != Sync::kNccl) << cell.name;
    // Ranks that own parts of all parameters can cut them anew, but for a step that a GPU has captured.
    const bool on_gpus = cell.same_host == SameHost::kGpuMemory;
    EXPECT_EQ(cell.May(Cell::kAutoBuckets), cell.placement == Placement::kRanks && !on_gpus) << cell.name;
    EXPECT_EQ(cell.May(Cell::kWholeGradient),
              cell.placement != Placement::kServers && !on_gpus && cell.sync != Sync::kNccl)
        << cell.name;
    EXPECT_EQ(cell.May(Cell::kSecret), cell.contact == Contact::kRendezvous || cell.contact == Contact::kServers)
        << cell.name;
  }
}

TEST(CellsTest, EachTransportHasOneWayToMeet) {
  for (const Cell& cell : Cells()) {
    EXPECT_EQ(FindCell({.transport = cell.transport})->contact, cell.contact) << cell.name;
    EXPECT_EQ(FindCell({.contact = cell.contact})->transport, cell.transport) << cell.name;
  }
}

TEST(CellsTest, EachTopologyHasOneUsualCell) {
  for (const Cell& cell : Cells()) EXPECT_THAT(NamesOf({.sync = cell.sync, .may = Cell::kUsual}), testing::SizeIs(1));
}

TEST(CellsTest, AJobWithoutThatMemoryHasItsOnlyWay) {
  EXPECT_STREQ(CellOf({.sync = Sync::kMpi, .same_host = SameHost::kSharedMemory}).name, "mpi");
  EXPECT_STREQ(CellOf({.sync = Sync::kStar, .server_count = 0, .same_host = SameHost::kSharedMemory}).name,
               "star-mpi-shm");
  EXPECT_STREQ(CellOf({.sync = Sync::kStar, .server_count = 0}).name, "star-mpi");
}

TEST(CellsTest, FlagsAndNames) {
  EXPECT_EQ(CellFlags(Named("star-tcp-shm")), "--sync=star --transport=tcp");
  EXPECT_EQ(CellFlags(Named("local")), "--sync=local");
  for (const Cell& cell : Cells()) {
    EXPECT_EQ(IsCoLocated(cell), cell.sync == Sync::kStar && cell.placement == Placement::kRanks) << cell.name;
  }
}

TEST(CellsTest, WhatAFlagAsksForAndACellLacksHasAReason) {
  for (const Cell& cell : Cells()) {
    for (const Cell::Ability ability : {Cell::kTree, Cell::kAutoBuckets, Cell::kWholeGradient}) {
      if (cell.May(ability)) {
        EXPECT_THAT(WhyNot(cell, ability), IsEmpty()) << cell.name;
      } else if (cell.Exchanges()) {
        EXPECT_THAT(WhyNot(cell, ability), Not(IsEmpty())) << cell.name << " " << ability;
      }
    }
  }
}

TEST(CellsTest, ATransportThatATopologyLacksIsRefusedWithTheWayOut) {
  EXPECT_EQ(WhyNotOver(Sync::kRing, TransportKind::kGrpc),
            "--sync=ring cannot use it, only a star has it: choose mpi or tcp");
  EXPECT_EQ(WhyNotOver(Sync::kMpi, TransportKind::kTcp),
            "--sync=mpi is MPI's own allreduce: drop it, or choose nccl or ring or star");
  EXPECT_EQ(WhyNotOver(Sync::kMpi, TransportKind::kGrpc), "--sync=mpi is MPI's own allreduce: drop it, or choose star");
  EXPECT_THAT(WhyNotOver(Sync::kNccl, TransportKind::kGrpc), testing::EndsWith("choose mpi or tcp"));
  EXPECT_THAT(WhyNotOver(Sync::kLocal, TransportKind::kMpi), StartsWith("--sync=local exchanges nothing"));
}

}  // namespace
}  // namespace starring
