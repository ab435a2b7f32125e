#include "worker/predict/prediction_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/not_written.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string PathOf(const std::string& name) { return ::testing::TempDir() + "/" + name; }

TEST(PredictionFileTest, CsvHasARowForEachSample) {
  const std::string path = PathOf("named.csv");
  const auto file =
      PredictionFile::Create({.path = path, .samples = 3, .outputs = 2, .class_names = {"rose", "lily, \"white\""}});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(std::vector<float>{0.25f, 0.75f}).ok());
  EXPECT_FALSE(std::filesystem::exists(path));  // not before it is whole
  ASSERT_TRUE((*file)->Append(std::vector<float>{1, 0, 0.5f, 0.5f}).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Content(path),
            "index,predicted,name,p0,p1\n0,1,\"lily, \"\"white\"\"\",0.25,0.75\n1,0,rose,1,0\n2,0,rose,0.5,0.5\n");
}

TEST(PredictionFileTest, CsvWithoutNamesHasNoColumnForThem) {
  const std::string path = PathOf("plain.csv");
  const auto file = PredictionFile::Create({.path = path, .samples = 1, .outputs = 3, .class_names = {}});
  ASSERT_TRUE((*file)->Append(std::vector<float>{0.1f, 0.2f, 0.7f}).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Content(path), "index,predicted,p0,p1,p2\n0,2,0.100000001,0.200000003,0.699999988\n");
}

TEST(PredictionFileTest, NpyIsAnArrayOfTwoDimensions) {
  const std::string path = PathOf("p.npy");
  const auto file = PredictionFile::Create({.path = path, .samples = 2, .outputs = 2, .class_names = {}});
  ASSERT_TRUE((*file)->Append(std::vector<float>{1, 0, 0, 1}).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  const std::string content = Content(path);
  ASSERT_EQ(content.size(), 128u + 16);
  EXPECT_EQ(content.substr(0, 10), std::string("\x93NUMPY\1\0\x76\0", 10));
  EXPECT_TRUE(absl::StartsWith(content.substr(10), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }  "));
  EXPECT_EQ(content[127], '\n');
  EXPECT_EQ(content.substr(128), std::string("\0\0\x80\x3f\0\0\0\0\0\0\0\0\0\0\x80\x3f", 16));
}

TEST(PredictionFileTest, RefusesOtherNamesAndPlaces) {
  EXPECT_THAT(PredictionFile::Create({.path = PathOf("p.txt"), .samples = 1, .outputs = 1, .class_names = {}})
                  .status()
                  .message(),
              HasSubstr("p.txt: expected a name that ends in .csv or .npy"));
  const auto nowhere =
      PredictionFile::Create({.path = "/nowhere/p.csv", .samples = 1, .outputs = 1, .class_names = {}}).status();
  EXPECT_TRUE(IsNotWritten(nowhere)) << nowhere;
}

TEST(PredictionFileTest, OneBitIsOneOfTwoClasses) {
  const std::string path = PathOf("bit.csv");
  const auto file = PredictionFile::Create({.path = path,
                                            .samples = 2,
                                            .outputs = 1,
                                            .content = PredictionFile::Content::kBits,
                                            .class_names = {"no", "yes"}});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append(std::vector<float>{0.5f, 0.75f}).ok());
  EXPECT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Content(path), "index,predicted,name,p0\n0,0,no,0.5\n1,1,yes,0.75\n");
}

}  // namespace
}  // namespace starring
