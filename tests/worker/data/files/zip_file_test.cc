#include "worker/data/files/zip_file.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ZipFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ZipFile>> Open(const std::string& content) {
    return ZipFile::Open(WriteFile(folder_, "a.zip", content));
  }
  // Reads in pieces, until one is short.
  static absl::StatusOr<std::string> ReadAll(ByteStream& stream, size_t piece_bytes) {
    std::string content;
    for (;;) {
      std::string piece(piece_bytes, '\0');
      const auto bytes = stream.Read({reinterpret_cast<uint8_t*>(piece.data()), piece.size()});
      if (!bytes.ok()) return bytes.status();
      content += piece.substr(0, static_cast<size_t>(*bytes));
      if (*bytes < static_cast<int64_t>(piece_bytes)) return content;
    }
  }
  std::string Refusal(const std::string& content, const std::string& name = "b") {
    const auto zip = Open(content);
    if (!zip.ok()) return std::string(zip.status().message());
    const auto stream = (*zip)->OpenMember(name);
    if (!stream.ok()) return std::string(stream.status().message());
    return std::string(ReadAll(**stream, 1000).status().message());
  }

  const std::string folder_ = MakeFolder("zip");
  std::string long_ = [] {
    std::string text;
    for (int i = 0; i < 300000; ++i) text += std::to_string(i);
    return text;
  }();
};

TEST_F(ZipFileTest, ReadsItsMembers) {
  const auto zip = Open(Zip({{"a", "hello"},
                             {"b", long_, true},
                             {"c", long_, true, true},
                             {"d", long_, false, true},
                             {"../e", "", false},
                             {"f", "", true}}));
  ASSERT_TRUE(zip.ok()) << zip.status();
  EXPECT_THAT((*zip)->names(), ElementsAre("a", "b", "c", "d", "../e", "f"));
  const auto content = [&](const std::string& name, size_t piece) {
    return ReadAll(**(*zip)->OpenMember(name), piece).value();
  };
  EXPECT_EQ(content("a", 3), "hello");
  EXPECT_EQ(content("a", 5), "hello");
  for (const size_t piece : {1000, 65536, 10000000}) {
    for (const std::string name : {"b", "c", "d"}) EXPECT_EQ(content(name, piece), long_);
  }
  EXPECT_EQ(content("../e", 9), "");
  EXPECT_EQ(content("f", 9), "");
  EXPECT_EQ((*zip)->OpenMember("x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE((*zip)->Has("b"));
  EXPECT_FALSE((*zip)->Has("x"));
  EXPECT_EQ((*(*zip)->OpenMember("a"))->path(), folder_ + "/a.zip:a");
}

TEST_F(ZipFileTest, RefusesEveryPart) {
  const std::string file = Zip({{"a", "hello"}, {"b", "hello hello", true}});
  for (size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(Open(file.substr(0, size)).ok()) << size;
  EXPECT_THAT(Refusal("nothing"),
              HasSubstr("a.zip is no zip archive that can be read: it has no directory at its end"));
}

TEST_F(ZipFileTest, ComparesContentAndChecksum) {
  for (const bool deflated : {false, true}) {
    std::string file = Zip({{"b", long_, deflated}});
    file[1000] ^= 1;
    EXPECT_THAT(Refusal(file), deflated ? HasSubstr("a.zip:b has") : HasSubstr("a.zip:b has the checksum"));
  }
}

// Each byte of the directory, changed: an error or the content, never a crash.
TEST_F(ZipFileTest, SurvivesADamagedDirectory) {
  const std::string file = Zip({{"a", "hello", true, true}, {"b", "hello hello", true}});
  const size_t directory = file.find("PK\1\2");
  ASSERT_NE(directory, std::string::npos);
  for (size_t i = directory; i < file.size(); ++i) {
    for (const char change : {'\1', '\x80', '\xff'}) {
      std::string damaged = file;
      damaged[i] ^= change;
      Refusal(damaged);
    }
  }
}

TEST_F(ZipFileTest, SaysWhatItDoesNotRead) {
  std::string file = Zip({{"b", "hello"}});
  const size_t entry = file.find("PK\1\2");
  std::string other = file;
  other[entry + 8] = 1;
  EXPECT_THAT(Refusal(other), HasSubstr("member b is encrypted"));
  other = file;
  other[entry + 10] = 12;
  EXPECT_THAT(Refusal(other), HasSubstr("member b is compressed by method 12, expected 0 (stored) or 8 (deflate)"));
  other = file;
  other[entry + 20] = 4;
  EXPECT_THAT(Refusal(other), HasSubstr("member b is stored, and has two sizes"));
  other = file;
  other[entry + 42] = 1;
  EXPECT_THAT(Refusal(other), HasSubstr("member b is not where the directory says"));
  other = file;
  other[other.size() - 20] = 1;
  EXPECT_THAT(Refusal(other), HasSubstr("it is one of several parts"));
  EXPECT_THAT(Refusal(Zip({{"b", "x"}, {"b", "y"}})), HasSubstr("it has two members b"));
  EXPECT_THAT(Refusal(Zip(std::vector<ZipMember>(1025, {"b", "x"}))), HasSubstr("expected at most 1024"));
}

// The directory's promise bounds the unpacking.
TEST_F(ZipFileTest, StopsABomb) {
  std::string file = Zip({{"b", std::string(1 << 20, '\0'), true}});
  const size_t entry = file.find("PK\1\2");
  file[entry + 24] = 10;
  file[entry + 25] = file[entry + 26] = 0;
  EXPECT_THAT(Refusal(file), HasSubstr("a.zip:b has damaged deflate data"));
}

}  // namespace
}  // namespace starring
