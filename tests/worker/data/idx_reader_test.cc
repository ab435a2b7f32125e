#include "worker/data/idx_reader.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IdxReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<Dataset> Read(const std::string& images, const std::string& labels) {
    return ReadIdx({.images = WriteFile(folder_, "images", images),
                    .labels = WriteFile(folder_, "labels", labels),
                    .classes = 10});
  }

  // The message of a refusal.
  std::string Refusal(const std::string& images, const std::string& labels) {
    const auto dataset = Read(images, labels);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss) << dataset.status();
    return std::string(dataset.status().message());
  }

  const std::string folder_ = MakeFolder("idx_reader");
};

TEST_F(IdxReaderTest, ReadsImagesAndLabels) {
  const auto dataset = Read(IdxImages(3, 2, 4), IdxLabels(3));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->count, 3);
  EXPECT_EQ(dataset->height, 2);
  EXPECT_EQ(dataset->width, 4);
  EXPECT_EQ(dataset->channels, 1);
  EXPECT_EQ(dataset->classes, 10);
  EXPECT_THAT(dataset->labels, ElementsAre(0, 1, 2));
  ASSERT_EQ(dataset->images.size(), 24u);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(dataset->images[i], i);
}

TEST_F(IdxReaderTest, GzippedIsTheSame) {
  const auto plain = Read(IdxImages(50, 7, 5), IdxLabels(50));
  const auto zipped = Read(Gzip(IdxImages(50, 7, 5)), Gzip(IdxLabels(50)));
  ASSERT_TRUE(zipped.ok()) << zipped.status();
  EXPECT_EQ(zipped->images, plain->images);
  EXPECT_EQ(zipped->labels, plain->labels);
}

TEST_F(IdxReaderTest, RefusesATruncatedFile) {
  std::string images = IdxImages(3, 2, 4);
  images.pop_back();
  EXPECT_THAT(Refusal(images, IdxLabels(3)),
              HasSubstr("/images is truncated: expected 24 bytes of images behind the header, found 23 at most"));
  // Zipped, the length is known only at the end.
  EXPECT_THAT(Refusal(Gzip(images), IdxLabels(3)),
              HasSubstr("/images is truncated: expected 24 bytes of images behind the header, found 23: copy"));
  std::string labels = IdxLabels(3);
  labels.pop_back();
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), Gzip(labels)),
              HasSubstr("/labels is truncated: expected 3 bytes of labels behind the header, found 2"));
}

TEST_F(IdxReaderTest, RefusesAnyPrefixOfAHeader) {
  const std::string images = IdxImages(3, 2, 4);
  for (size_t size = 0; size < 16; ++size) {
    EXPECT_THAT(Refusal(images.substr(0, size), IdxLabels(3)),
                HasSubstr("/images is truncated: expected a header of 16 bytes, found " + std::to_string(size)));
  }
}

TEST_F(IdxReaderTest, RefusesAFileThatIsTooLong) {
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4) + "x", IdxLabels(3)),
              HasSubstr("/images is too long: expected 24 bytes of images behind the header, found more"));
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), Gzip(IdxLabels(3) + "x")), HasSubstr("/labels is too long"));
}

TEST_F(IdxReaderTest, RefusesAnotherMagicNumber) {
  EXPECT_THAT(
      Refusal(IdxLabels(3), IdxLabels(3)),
      AllOf(HasSubstr("/images begins with 0x00000801, expected 0x00000803"), HasSubstr("give the images file")));
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), IdxImages(3, 2, 4)),
              HasSubstr("/labels begins with 0x00000803, expected 0x00000801"));
  EXPECT_THAT(Refusal("<html><body>404 Not Found</body></html>", IdxLabels(3)),
              HasSubstr("/images begins with 0x3c68746d, expected 0x00000803"));
}

TEST_F(IdxReaderTest, RefusesCountsThatDisagree) {
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), IdxLabels(4)),
              AllOf(HasSubstr("/images holds 3 images"), HasSubstr("/labels holds 4 labels")));
}

TEST_F(IdxReaderTest, RefusesALabelOutOfRange) {
  EXPECT_THAT(Refusal(IdxImages(3, 2, 4), Idx(0x801, {3}, std::string("\0\x0a\1", 3))),
              HasSubstr("/labels: label of image 1 is 10, expected 0 to 9"));
}

TEST_F(IdxReaderTest, RefusesSizesThatMakeNoSense) {
  EXPECT_THAT(Refusal(Idx(0x803, {0, 2, 4}, ""), IdxLabels(3)), HasSubstr("/images says that it holds no images"));
  EXPECT_THAT(Refusal(Idx(0x803, {3, 0, 4}, ""), IdxLabels(3)), HasSubstr("images have 0 x 4 pixels"));
  EXPECT_THAT(Refusal(Idx(0x803, {3, 2, 100000}, ""), IdxLabels(3)),
              HasSubstr("2 x 100000 pixels, expected 1 to 8192"));
}

// Nothing may be allocated for what such a header promises: with the memory of this machine that would fail.
TEST_F(IdxReaderTest, RefusesAnAbsurdPromiseBeforeAllocating) {
  EXPECT_THAT(Refusal(Idx(0x803, {0xffffffffu, 8192, 8192}, "abc"), IdxLabels(3)),
              HasSubstr("holds 288230376084602880 bytes of images, the limit is"));
  EXPECT_THAT(Refusal(Idx(0x803, {16385, 1024, 1024}, "abc"), IdxLabels(3)), HasSubstr("the limit is 17179869184"));
  EXPECT_THAT(Refusal(Idx(0x803, {16384, 1024, 1024}, "abc"), IdxLabels(3)), HasSubstr("/images is truncated"));
  EXPECT_THAT(Refusal(Idx(0x803, {16384, 1024, 1000}, "abc"), IdxLabels(3)),
              AllOf(HasSubstr("/images is truncated: expected 16777216000 bytes"), HasSubstr("found 3 at most")));
  EXPECT_THAT(Refusal(Gzip(Idx(0x803, {16384, 1024, 1000}, "abc")), IdxLabels(3)),
              HasSubstr("/images is truncated: expected 16777216000 bytes"));
}

// 64 MiB of zeros from 64 KiB: the reader stops one byte behind what the header promised.
TEST_F(IdxReaderTest, RefusesAGzipBomb) {
  EXPECT_THAT(Refusal(Gzip(IdxImages(3, 2, 4) + std::string(64 << 20, '\0')), IdxLabels(3)),
              HasSubstr("/images is too long: expected 24 bytes"));
}

TEST_F(IdxReaderTest, NamesAMissingFile) {
  const auto dataset = ReadIdx({.images = folder_ + "/none", .labels = WriteFile(folder_, "labels", IdxLabels(3))});
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr(folder_ + "/none"));
}

}  // namespace
}  // namespace starring
