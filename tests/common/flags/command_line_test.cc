#include "common/flags/command_line.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/not_written.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Options {
  int number = 1;
  bool is_on = false;
  std::string text;
};

constexpr FlagRow kRows[] = {
    {"test_number", "numbers", "a number", WholeAt<&Options::number>(-5, 20)},
    {"test_switch", "rest", "a switch", SwitchAt<&Options::is_on>()},
    {"test_text", "rest", "a text", TextAt<&Options::text>("text")},
};
const FlagTable& Table() {
  static const Options defaults;
  static const FlagTable table = MakeFlagTable("program", "for a test.", kRows, &defaults);
  return table;
}

class ParseFlagsTest : public ::testing::Test {
 protected:
  absl::StatusOr<ParsedFlags> Parse(const std::vector<std::string>& words, FlagFilePart part = FlagFilePart::kNone) {
    std::vector<const char*> argv = {"program"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    options_ = {};
    return ParseFlags(static_cast<int>(argv.size()), argv.data(), Table(), &options_, part);
  }

  std::string Refusal(const std::vector<std::string>& words) {
    const absl::Status status = Parse(words).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  // Path of a new file of flags.
  std::string File(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  Options options_;
};

TEST_F(ParseFlagsTest, TakesEveryWayToWriteAFlag) {
  EXPECT_THAT(Parse({"--test_number=7", "--test_switch"})->given, ElementsAre("test_number", "test_switch"));
  EXPECT_EQ(options_.number, 7);
  EXPECT_TRUE(options_.is_on);
  EXPECT_THAT(Parse({"--test_number", "-3", "--notest_switch"})->given, ElementsAre("test_number", "test_switch"));
  EXPECT_EQ(options_.number, -3);
  EXPECT_FALSE(options_.is_on);
}

// bash leaves the ~ of --flag=~/path, and no shell reads a file of flags.
TEST(PathFlagsTest, RefusesWhatAShellWasToReplace) {
  static constexpr FlagRow kPathRows[] = {{"test_file", "rest", "a file", TextAt<&Options::text>("name or file")},
                                          {"test_run", "rest", "a name", TextAt<&Options::text>("name")}};
  const Options defaults;
  const FlagTable table = MakeFlagTable("program", "for a test.", kPathRows, &defaults);
  Options options;
  const auto parse = [&](const std::string& word) {
    const std::vector<const char*> argv = {"program", word.c_str()};
    return ParseFlags(2, argv.data(), table, &options).status();
  };
  for (const std::string path : {"~", "~/ck", "$HOME/ck", "${HOME}/ck", "$_x"}) {
    const absl::Status status = parse("--test_file=" + path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), absl::StrCat("flag --test_file cannot be \"", path,
                                             "\": no shell has replaced its beginning: write the whole path, or ./",
                                             path, " if that is the name"));
  }
  for (const std::string path : {"", "./~", "a~/b", "~name", "$1", "a$HOME", "/srv/x"}) {
    EXPECT_TRUE(parse("--test_file=" + path).ok()) << path;
  }
  EXPECT_TRUE(parse("--test_run=~/ck").ok());
}

TEST_F(ParseFlagsTest, RefusesAnUnknownFlagAndNamesTheNearest) {
  EXPECT_THAT(Refusal({"--test_numbr=7"}), HasSubstr("unknown flag --test_numbr, did you mean --test_number?"));
  EXPECT_THAT(Refusal({"--notest_number"}), HasSubstr("unknown flag --notest_number"));
  EXPECT_THAT(Refusal({"--test_number=7", "--libc=own"}), HasSubstr("unknown flag --libc: only a bundle's programs "));
}

TEST_F(ParseFlagsTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(Refusal({"--test_number=seven"}),
              HasSubstr("flag --test_number cannot be \"seven\": it must be a whole number from -5 to 20"));
  EXPECT_THAT(Refusal({"--test_number"}), HasSubstr("has no value"));
  EXPECT_THAT(Refusal({"--test_number=1", "--test_number=2"}), HasSubstr("given twice"));
  EXPECT_THAT(Refusal({"--test_switch=perhaps"}), HasSubstr("true or false"));
  EXPECT_THAT(Refusal({"stray"}), HasSubstr("unexpected word \"stray\""));
}

TEST_F(ParseFlagsTest, RefusesWhatIsBeyondTheLimits) {
  EXPECT_TRUE(Parse({"--test_number=20"}).ok());
  for (const std::string value : {"-6", "21", "99999999999999999999"}) {
    EXPECT_THAT(Refusal({"--test_number=" + value}), HasSubstr("it must be a whole number from -5 to 20"));
  }
}

// Abseil's parser knows these flags. It would ignore them here, or do something else than their names say.
TEST_F(ParseFlagsTest, RefusesAbseilsFlagsWithASentence) {
  for (const std::string flag : {"--fromenv=HOME", "--tryfromenv=HOME"}) {
    EXPECT_THAT(Refusal({flag}), HasSubstr("not read from the environment"));
  }
  EXPECT_THAT(Refusal({"--undefok=lanes", "--lanes=1"}), HasSubstr("always refused"));
  for (const std::string flag : {"--helpshort", "--helpon=main", "--helppackage", "--helpmatch=main", "--nohelp"}) {
    EXPECT_THAT(Refusal({flag}), HasSubstr("is not taken here: "));
  }
  EXPECT_THAT(Refusal({"--only_check_args"}), HasSubstr("is not taken here: "));
}

// An editor may write "\r\n", lines may be indented, and a value may contain "=".
TEST_F(ParseFlagsTest, ReadsAFile) {
  const std::string path =
      File("good.flags", "# all of it\r\n\n  --test_number=9 \n\t# more\n-test_switch\n--test_text=a=b");
  EXPECT_THAT(Parse({"--flagfile=" + path})->given, ElementsAre("test_number", "test_switch", "test_text"));
  EXPECT_EQ(options_.number, 9);
  EXPECT_TRUE(options_.is_on);
  EXPECT_EQ(options_.text, "a=b");
}

TEST_F(ParseFlagsTest, TheCommandLineWinsOverAFileAndAFileOverTheFilesItNames) {
  const std::string inner = File("inner.flags", "--test_number=3\n--test_text=inner\n--test_switch\n");
  const std::string outer = File("outer.flags", absl::StrCat("--test_text=outer\n--flagfile=", inner, "\n"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--test_number=1", "--flagfile", outer}, {"--flagfile", outer, "--test_number=1"}}) {
    ASSERT_TRUE(Parse(words).ok());
    EXPECT_EQ(options_.number, 1);
    EXPECT_EQ(options_.text, "outer");
    EXPECT_TRUE(options_.is_on);
  }
}

TEST_F(ParseFlagsTest, AnErrorInAFileNamesFileAndLine) {
  const auto refusal = [this](const std::string& text) {
    const std::string path = File("wrong.flags", text);
    std::string message = Refusal({"--flagfile=" + path});
    EXPECT_THAT(message, ::testing::StartsWith(absl::StrCat(path, ":2: "))) << message;
    return message;
  };
  EXPECT_THAT(refusal("#\n--test_numbr=3"), HasSubstr("did you mean --test_number?"));
  EXPECT_THAT(refusal("\n--test_number=21"), HasSubstr("from -5 to 20"));
  EXPECT_THAT(refusal("\n--test_number"), HasSubstr("has no value"));
  EXPECT_THAT(refusal("\ntest_number=3"), HasSubstr("cannot read \"test_number=3\""));
  EXPECT_THAT(refusal("\n--test_number 3"), HasSubstr("a line is one --flag=value"));
  EXPECT_THAT(refusal("\n--test_number=3 # three"), HasSubstr("a comment has a line of its own"));
  EXPECT_THAT(refusal("--test_number=1\n--test_number=1"), HasSubstr("wrong.flags:1"));
  EXPECT_THAT(refusal("\n--help"), HasSubstr("--help is for the command line"));
  EXPECT_THAT(refusal("\n--fromenv=HOME"), HasSubstr("environment"));
  EXPECT_THAT(refusal(absl::StrCat("\n--test_text=", std::string(10'000, 'x'))), HasSubstr("at most 8192 bytes"));
  EXPECT_THAT(refusal(absl::StrCat("\n--test_text=a", std::string(1, '\0'))), HasSubstr("control character"));
}

// Neither file is nearer to the command line, so neither value may win.
TEST_F(ParseFlagsTest, TheSameFlagInTwoFilesOfOneDepthIsRefused) {
  const std::string a = File("a.flags", "--test_number=1\n");
  const std::string b = File("b.flags", "\n--test_number=1\n");
  EXPECT_THAT(Refusal({"--flagfile=" + a, "--flagfile=" + b}),
              HasSubstr(absl::StrCat(b, ":2: flag --test_number is given twice: keep one (the other: ", a, ":1)")));
}

TEST_F(ParseFlagsTest, RefusesAFileItCannotRead) {
  EXPECT_EQ(Parse({"--flagfile=/nowhere/at.all"}).status().code(), absl::StatusCode::kNotFound);
  const std::string outer = File("names_none.flags", "\n--flagfile=/nowhere/at.all");
  EXPECT_THAT(std::string(Parse({"--flagfile=" + outer}).status().message()),
              HasSubstr(outer + ":2: cannot read the file of flags /nowhere/at.all: No such file"));
  EXPECT_THAT(std::string(Parse({"--flagfile=a,b"}).status().message()), HasSubstr("each --flagfile names one file"));
  EXPECT_THAT(Refusal({"--flagfile=/"}), HasSubstr("no regular file"));
  EXPECT_THAT(Refusal({"--flagfile"}), HasSubstr("has no value"));
  EXPECT_THAT(Refusal({"--flagfile=" + File("long.flags", std::string(65'537, '\n'))}), HasSubstr("at most 65536"));
}

TEST_F(ParseFlagsTest, FilesThatNameEachOtherEnd) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/circle.flags");
  File("circle.flags", absl::StrCat("--flagfile=", path, "\n"));
  EXPECT_THAT(Refusal({"--flagfile=" + path}), HasSubstr("nested at most 4 deep"));
  const std::string leaf = File("leaf.flags", "");
  std::string many;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, "--flagfile=", leaf, "\n");
  EXPECT_THAT(Refusal({"--flagfile=" + File("many.flags", many)}), HasSubstr("at most 16 files"));
}

TEST_F(ParseFlagsTest, ALauncherAndItsWorkersReadTheirPartsOfOneFile) {
  const std::string path = File("job.flags", "--test_number=2\n--\n--test_number=3\n");
  const auto launcher = Parse({"--flagfile=" + path}, FlagFilePart::kLauncher);
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  EXPECT_EQ(options_.number, 2);
  EXPECT_THAT(launcher->files_with_worker_part, ElementsAre(path));
  ASSERT_TRUE(Parse({"--flagfile=" + path}, FlagFilePart::kWorker).ok());
  EXPECT_EQ(options_.number, 3);
  EXPECT_THAT(Refusal({"--flagfile=" + path}), HasSubstr(path + ":2: a line -- is for"));
  EXPECT_THAT(Refusal({"--flagfile=" + File("outer.flags", "--flagfile=" + path)}), HasSubstr("in the outermost file"));
}

TEST_F(ParseFlagsTest, HelpAndVersionPrintAndEndTheProcess) {
  EXPECT_EXIT(Parse({"--help"}).IgnoreError(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--helpfull"}).IgnoreError(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--version"}).IgnoreError(), ::testing::ExitedWithCode(0), "");
  EXPECT_THAT(Refusal({"--help=nothing"}), HasSubstr("its topics are numbers, rest"));
}

TEST_F(ParseFlagsTest, RefusesOptionsOfAnotherProgram) {
  int other = 0;
  EXPECT_DEATH(ParseFlags(0, nullptr, Table(), &other).IgnoreError(), "kept in another struct");
}

// Run in a process of its own, because both change the process: the exit code says what was found.
int FolderAfterEntering(const std::string& user, const std::string& expected) {
  setenv("BUILD_WORKING_DIRECTORY", user.c_str(), 1);
  EnterUsersFolder("program");
  if (getenv("BUILD_WORKING_DIRECTORY") != nullptr) return 1;
  return std::filesystem::equivalent(std::filesystem::current_path(), expected) ? 0 : 2;
}

TEST(EnterUsersFolderTest, EntersOnceAndForgetsTheFolder) {
  const std::string folder = ::testing::TempDir();
  EXPECT_EXIT(_exit(FolderAfterEntering(folder, folder)), ::testing::ExitedWithCode(0), "");
}

TEST(EnterUsersFolderTest, StaysAndWarnsIfTheFolderIsGone) {
  const std::string here = std::filesystem::current_path();
  EXPECT_EXIT(_exit(FolderAfterEntering("/no/such/folder", here)), ::testing::ExitedWithCode(0),
              "program: cannot enter /no/such/folder: No such file");
}

TEST(EnterUsersFolderTest, StaysWithoutTheVariable) {
  const std::filesystem::path here = std::filesystem::current_path();
  unsetenv("BUILD_WORKING_DIRECTORY");
  EnterUsersFolder("program");
  EXPECT_EQ(std::filesystem::current_path(), here);
}

TEST(ExitCodeTest, TellsARefusalFromAFailureFromAMissingPeer) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::DataLossError("")), 2);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCode(NotWrittenError("")), 4);
}

}  // namespace
}  // namespace starring
