// The library that this machine has, and files that are none. Jobs with both families: site_mpi_test.py of
// tests/bench/systems.
#include "common/transport/mpi/mpi_library.h"

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

EnvironmentLookup Variables(const std::map<std::string, std::string>& set) {
  static std::map<std::string, std::string> kept;
  kept = set;
  static const auto lookup = [](const char* name) -> const char* {
    const auto found = kept.find(name);
    return found == kept.end() ? nullptr : found->second.c_str();
  };
  return lookup;
}

TEST(MpiLibraryTest, TheLauncherSaysWhichFamilyComesFirst) {
  constexpr MpiFamily kOpen = MpiFamily::kOpenMpi, kMpich = MpiFamily::kMpich;
  EXPECT_THAT(MpiFamilies("auto", Launcher::kOpenMpi, Variables({})), ElementsAre(kOpen));
  EXPECT_THAT(MpiFamilies("auto", Launcher::kPmi, Variables({})), ElementsAre(kMpich));
  EXPECT_THAT(MpiFamilies("auto", Launcher::kSlurm, Variables({{"PMIX_RANK", "0"}, {"PMI_RANK", "0"}})),
              ElementsAre(kOpen, kMpich));
  EXPECT_THAT(MpiFamilies("auto", Launcher::kSlurm, Variables({{"PMI_RANK", "0"}})), ElementsAre(kMpich, kOpen));
  EXPECT_THAT(MpiFamilies("auto", Launcher::kNone, Variables({})), ElementsAre(kOpen, kMpich));
  EXPECT_THAT(MpiFamilies("openmpi", Launcher::kPmi, Variables({})), ElementsAre(kOpen));
  EXPECT_THAT(MpiFamilies("mpich", Launcher::kOpenMpi, Variables({})), ElementsAre(kMpich));
}

TEST(MpiLibraryTest, LoadsTheMachinesOpenMpi) {
  const absl::StatusOr<MpiLibrary> library = LoadMpiLibrary("openmpi", Launcher::kNone);
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->family(), MpiFamily::kOpenMpi);
  EXPECT_THAT(library->file, HasSubstr("libmpi.so.40"));
  EXPECT_THAT(library->Name(), testing::MatchesRegex("Open MPI [0-9]+\\.[0-9]+\\.[0-9a-z]+"));
  // By its path, it is the same one.
  const absl::StatusOr<MpiLibrary> again = LoadMpiLibrary(std::filesystem::canonical(library->file), Launcher::kPmi);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(std::get<0>(again->calls).handles.world, std::get<0>(library->calls).handles.world);
}

TEST(MpiLibraryTest, RefusesWhatIsNoMpi) {
  EXPECT_THAT(std::string(LoadMpiLibrary("/lib/x86_64-linux-gnu/libm.so.6", Launcher::kNone).status().message()),
              AllOf(HasSubstr("libm.so.6"), HasSubstr("is no MPI library"), HasSubstr("MPI_Init_thread")));
  EXPECT_THAT(std::string(LoadMpiLibrary("/no/such/libmpi.so", Launcher::kNone).status().message()),
              AllOf(StartsWith("--mpi=/no/such/libmpi.so cannot be loaded: "), HasSubstr("No such file")));
}

// A folder in which a site has put a library that does not load.
TEST(MpiLibraryTest, SaysWhyTheLibraryOfAFolderDoesNotLoad) {
  const std::string folder = std::string(getenv("TEST_TMPDIR")) + "/site";
  std::filesystem::create_directories(folder + "/lib");
  EXPECT_THAT(LibraryFolders(folder), ElementsAre(folder + "/lib"));
  EXPECT_THAT(std::string(LoadMpiLibrary(folder, Launcher::kNone).status().message()), HasSubstr("none was found"));
  std::ofstream(folder + "/lib/libmpi.so.12") << "a text";
  EXPECT_THAT(std::string(LoadMpiLibrary(folder, Launcher::kNone).status().message()),
              AllOf(HasSubstr(folder + "/lib/libmpi.so.12"), HasSubstr("file too short")));
  // The launcher says which of two is meant.
  std::ofstream(folder + "/lib/libmpi.so.40") << "a text";
  EXPECT_THAT(std::string(LoadMpiLibrary(folder, Launcher::kPmi).status().message()),
              AllOf(HasSubstr("libmpi.so.12"), testing::Not(HasSubstr("libmpi.so.40"))));
}

}  // namespace
}  // namespace starring
