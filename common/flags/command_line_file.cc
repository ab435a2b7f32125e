#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"

namespace starring {
namespace {

constexpr size_t kShownBytesMax = 100;  // of a wrong line, which may be part of a binary file

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot read the file of flags ", path, ": ", strerror(errno),
                                            absl::StrContains(path, ',') ? "; each --flagfile names one file" : ""));
  }
  // The check precedes the opening: opening a pipe would wait for a writer, for ever if none comes.
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("the file of flags ", path, " is no regular file"));
  }
  if (facts.st_size > kFlagFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the file of flags ", path, " has ", facts.st_size,
                                                   " bytes: at most ", kFlagFileBytesMax, " are read"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read the file of flags ", path));
  return text;
}

// The line may hold any bytes. It is escaped, so that it cannot control the terminal that shows the message.
absl::Status Refuse(absl::string_view place, absl::string_view line, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(place, "cannot read \"", absl::Utf8SafeCEscape(line.substr(0, kShownBytesMax)), "\": ", why));
}

absl::Status CheckLine(absl::string_view place, absl::string_view line) {
  if (line.size() > static_cast<size_t>(kFlagLineBytesMax)) {
    return Refuse(place, line, absl::StrCat("a line has at most ", kFlagLineBytesMax, " bytes"));
  }
  if (!absl::StartsWith(line, "-")) return Refuse(place, line, "a line is --flag=value, empty, or a comment after #");
  // In a shell the # would begin a comment; here it would become part of the value.
  if (absl::StrContains(line, " #")) return Refuse(place, line, "a comment has a line of its own");
  const absl::string_view name = line.substr(0, line.find('='));
  if (name.find_first_of(" \t") != absl::string_view::npos) return Refuse(place, line, "a line is one --flag=value");
  // A control character is a sign of a binary file. It would also reach the terminal with every message that quotes the
  // value.
  for (const char c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return Refuse(place, line, "it has a control character");
    }
  }
  return absl::OkStatus();
}

// Reads a file and the files that it names, depth first: the lines of a named file take the place of its --flagfile.
class Reader {
 public:
  absl::Status Read(const std::string& path, int depth, std::vector<FlagLine>* lines) {
    // Files that name each other end at the depth; this bounds a tree of them.
    if (++file_count_ > kFlagFilesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read ", path, ": at most ", kFlagFilesMax, " files of flags are read"));
    }
    ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
    int number = 0;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      const std::string place = absl::StrCat(path, ":", ++number, ": ");
      // This also drops the carriage returns of a file from Windows.
      line = absl::StripAsciiWhitespace(line);
      if (line.empty() || absl::StartsWith(line, "#")) continue;
      // From this line on the settings are the workers'. A second such line, or one in a file that is named, would
      // leave unclear where they begin.
      if (line == "--") {
        if (depth > 1 || !result_.dashes_place.empty()) {
          return Refuse(place, line, "it divides the launcher's flags from its workers' once, in the outermost file");
        }
        result_.dashes_place = place;
        // Files that are named from here on get this pointer too: their lines are the workers'.
        lines = &result_.worker_lines;
        continue;
      }
      RETURN_IF_ERROR(CheckLine(place, line));
      absl::string_view word = line;
      if (!absl::ConsumePrefix(&word, "--")) absl::ConsumePrefix(&word, "-");
      if (!absl::ConsumePrefix(&word, "flagfile=")) {
        lines->push_back({.word = std::string(line), .place = place, .depth = depth});
      } else if (depth == kFlagFileDepthMax) {
        return Refuse(place, line, absl::StrCat("files of flags are nested at most ", kFlagFileDepthMax, " deep"));
      } else {
        const std::string quoted = place;  // without its last ": ", which RETURN_IF_ERROR adds
        RETURN_IF_ERROR(Read(std::string(word), depth + 1, lines), quoted.substr(0, quoted.size() - 2));
      }
    }
    return absl::OkStatus();
  }

  FlagFile& result() { return result_; }

 private:
  FlagFile result_;
  int file_count_ = 0;
};

}  // namespace

absl::StatusOr<FlagFile> ReadFlagFile(const std::string& path) {
  Reader reader;
  RETURN_IF_ERROR(reader.Read(path, 1, &reader.result().lines));
  return std::move(reader.result());
}

}  // namespace starring
