#include "common/job/cell_pages.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "common/job/cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr char kMend[] = "bazel run //worker/options:flag_pages -- \"$PWD\" mends it";

std::string FileText(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(CellPagesTest, ThePageHasTheTable) {
  // The page is too long to print.
  EXPECT_TRUE(absl::StrContains(FileText("worker/exchange/README.md"), CellsMarkdown())) << kMend;
}

TEST(CellPagesTest, TheProgramsOfBenchHaveTheTable) {
  EXPECT_EQ(FileText("bench/compare/measured/cells.json"), CellsJson()) << kMend;
}

TEST(CellPagesTest, EachCellHasALine) {
  for (const Cell& cell : Cells()) {
    EXPECT_THAT(CellsMarkdown(), HasSubstr("| `" + std::string(cell.name) + "` | `" + CellFlags(cell) + "` | "));
    EXPECT_THAT(CellsJson(), HasSubstr("{\"name\": \"" + std::string(cell.name) + "\", "));
  }
  EXPECT_THAT(CellsMarkdown(),
              HasSubstr("\n| `ring-tcp` | `--sync=ring --transport=tcp` | in the ranks | messages | - | yes |"));
  EXPECT_THAT(CellsJson(),
              HasSubstr("\"placement\": \"in each rank\", \"transport\": \"mpi\", \"memory\": \"messages\","
                        "\n  \"may\": [\"whole_gradient\"]}"));
}

}  // namespace
}  // namespace starring
