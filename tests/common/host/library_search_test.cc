#include "common/host/library_search.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// A copy of a library, under a name that the loader does not know.
std::string PutLibrary(const std::string& folder, const std::string& name) {
  link_map* map = nullptr;
  dlinfo(dlopen("libm.so.6", RTLD_NOW), RTLD_DI_LINKMAP, &map);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + name;
  std::filesystem::copy_file(map->l_name, path, std::filesystem::copy_options::overwrite_existing);
  return path;
}

TEST(LibrarySearchTest, LooksWhereWheelsKeepLibraries) {
  const std::string root = testing::TempDir() + "/venv";
  PutLibrary(root + "/lib/python3.11/site-packages/nvidia/cu13/lib", "libstarring_one.so.13");
  PutLibrary(root + "/lib/python3.12/site-packages/torch/lib", "libstarring_two.so.13");
  const auto folders =
      GpuLibraryFolders([&](const char* name) { return std::string(name) == "VIRTUAL_ENV" ? root.c_str() : nullptr; });
  EXPECT_TRUE(OpenGpuLibrary("libstarring_one.so.13", folders).ok());
  EXPECT_TRUE(OpenGpuLibrary("libstarring_two.so.13", folders).ok());
  EXPECT_FALSE(OpenGpuLibrary("libstarring_two.so.12", folders).ok());
}

TEST(LibrarySearchTest, TheToolkitOfTheEnvironmentComesFirstAndTheUsualOneLast) {
  const std::map<std::string, const char*> variables = {{"CUDA_HOME", "/opt/cuda"}, {"HOME", "/people/me"}};
  const auto folders = GpuLibraryFolders([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
  EXPECT_EQ(folders.front(), "/opt/cuda/lib64");
  EXPECT_EQ(folders.back(), "/usr/local/cuda/lib64");
  EXPECT_THAT(folders, Contains("/people/me/.local/lib/python3*/site-packages/nvidia/*/lib"));
  EXPECT_THAT(folders, Not(Contains("/lib")));
}

TEST(LibrarySearchTest, SaysWhatTheLoaderSaidOfAFileThatIsNoLibrary) {
  const std::string folder = testing::TempDir() + "/broken";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/libstarring_three.so.13") << "no library";
  const auto library = OpenGpuLibrary("libstarring_three.so.13", {folder});
  EXPECT_EQ(library.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(library.status().message()), HasSubstr(folder + "/libstarring_three.so.13"));
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("LD_LIBRARY_PATH"));
}

}  // namespace
}  // namespace starring
