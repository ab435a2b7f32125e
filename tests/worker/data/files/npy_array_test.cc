#include "worker/data/files/npy_array.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"
#include "worker/data/files/file_stream.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const std::string& text) {
  const auto array = ParseNpyHeader(text, "a.npy");
  EXPECT_EQ(array.status().code(), absl::StatusCode::kDataLoss) << array.status();
  return std::string(array.status().message());
}

TEST(NpyArrayTest, ReadsADictionary) {
  for (const std::string text : {
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n",
           "{\"shape\":(3,4,),\"fortran_order\":False,\"descr\":\"<f4\"}",
           " { 'fortran_order' : False , 'shape' : ( 3 , 4 ) , 'descr' : '<f4' } ",
       }) {
    const auto array = ParseNpyHeader(text, "a.npy");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->type(), "float32");
    EXPECT_EQ(array->element_bytes, 4);
    EXPECT_THAT(array->shape, ElementsAre(3, 4));
    EXPECT_EQ(array->element_count(), 12);
  }
}

TEST(NpyArrayTest, KnowsTheTypes) {
  const auto type = [](const std::string& code) {
    return ParseNpyHeader("{'descr': '" + code + "', 'fortran_order': False, 'shape': (1,)}", "a.npy")->type();
  };
  EXPECT_EQ(type("|b1"), "bool");
  EXPECT_EQ(type("|u1"), "uint8");
  EXPECT_EQ(type(">u1"), "uint8");  // one byte has no order
  EXPECT_EQ(type("<i8"), "int64");
  EXPECT_EQ(type("<f2"), "float16");
}

TEST(NpyArrayTest, SaysWhatToDoAboutOtherArrays) {
  EXPECT_THAT(Refusal("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
              HasSubstr("a.npy is an array of Python objects, which are not read"));
  EXPECT_THAT(Refusal("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}"),
              HasSubstr("array of records"));
  EXPECT_THAT(Refusal("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}"),
              AllOf(HasSubstr("big-endian"), HasSubstr("newbyteorder")));
  EXPECT_THAT(Refusal("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}"), HasSubstr("of the type <c8"));
  EXPECT_THAT(Refusal("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}"), HasSubstr("ascontiguousarray"));
  EXPECT_THAT(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), HasSubstr("no dimension"));
  EXPECT_THAT(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0)}"), HasSubstr("dimension of 0"));
  std::string shape;
  for (int i = 0; i < 33; ++i) shape += "1, ";
  EXPECT_THAT(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + ")}"),
              HasSubstr("more than 32 dimensions"));
}

// A hostile header is text that Python would evaluate.
TEST(NpyArrayTest, RefusesEverythingElse) {
  for (const std::string text : {
           "",
           "{",
           "{}",
           "x",
           "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 1",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
           "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').system('x'),)}",
       }) {
    EXPECT_THAT(Refusal(text), HasSubstr("a.npy has no header of NumPy")) << text;
  }
}

class NpyFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<NpyArray> Read(const std::string& content) {
    stream_ = FileStream::Open(WriteFile(folder_, "a.npy", content)).value();
    return ReadNpyHeader(*stream_);
  }
  std::string Refusal(const std::string& content) { return std::string(Read(content).status().message()); }

  const std::string folder_ = MakeFolder("npy_file");
  std::unique_ptr<FileStream> stream_;
};

TEST_F(NpyFileTest, EndsAtTheFirstElement) {
  std::string file = Npy("|u1", "(2, 3)", "abcdef");
  for (const int version : {1, 2, 3}) {
    if (version == 2) file.insert(10, 2, '\0');  // the length has four bytes since then
    file[6] = static_cast<char>(version);
    ASSERT_TRUE(Read(file).ok()) << Read(file).status();
    std::string rest(10, '\0');
    EXPECT_EQ(stream_->Read({reinterpret_cast<uint8_t*>(rest.data()), rest.size()}).value(), 6);
    EXPECT_EQ(rest.substr(0, 6), "abcdef");
  }
}

TEST_F(NpyFileTest, RefusesWhatIsNoArray) {
  const std::string file = Npy("|u1", "(2, 3)", "abcdef");
  for (size_t size = 0; size < file.size() - 6; ++size) EXPECT_FALSE(Read(file.substr(0, size)).ok()) << size;
  EXPECT_THAT(Refusal("not an array at all"), HasSubstr("a.npy is no array of NumPy: expected the first bytes"));
  EXPECT_THAT(Refusal("\x89PNG and more bytes"), HasSubstr("a.npy is a PNG image"));
  std::string other = file;
  other[6] = 4;
  EXPECT_THAT(Refusal(other), HasSubstr("has version 4 of NumPy's format"));
  other = file;
  other[6] = 2;
  other[10] = other[11] = '\x7f';
  EXPECT_THAT(Refusal(other), HasSubstr("expected at most 65536"));
}

TEST_F(NpyFileTest, RefusesAnAbsurdPromise) {
  EXPECT_THAT(Refusal(Npy("<f8", "(1152921504606846976, 2)", "abcdef")), HasSubstr("a.npy is truncated"));
  EXPECT_THAT(Refusal(Npy("<f8", "(4294967296, 4294967296)", "abcdef")), HasSubstr("more than 2^63 elements"));
  EXPECT_THAT(Refusal(Npy("<f8", "(1,)", "abcdefg")),
              HasSubstr("1 elements of 8 bytes, after it come at most 7 bytes"));
}

}  // namespace
}  // namespace starring
