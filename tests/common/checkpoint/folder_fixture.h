// A folder of its own for each test of checkpoints.
#ifndef STARRING_TESTS_COMMON_CHECKPOINT_FOLDER_FIXTURE_H_
#define STARRING_TESTS_COMMON_CHECKPOINT_FOLDER_FIXTURE_H_

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace starring {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
  }

  // The names in the folder, sorted.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string dir_;  // named after the test; does not exist at its start
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_CHECKPOINT_FOLDER_FIXTURE_H_
