#include "common/job/cell_pages.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "common/job/cells.h"
#include "common/job/sync.h"

namespace starring {
namespace {

constexpr Choice<Placement> kPlacements[] = {
    {"in each rank", Placement::kEachRank}, {"in the ranks", Placement::kRanks}, {"in servers", Placement::kServers}};
constexpr Choice<SameHost> kMemories[] = {
    {"messages", SameHost::kSocket}, {"shared memory", SameHost::kSharedMemory}, {"GPU memory", SameHost::kGpuMemory}};

// A column of the page's table, and a word of the JSON.
struct Column {
  Cell::Ability ability;
  const char* word;
  const char* heading;
};
constexpr Column kColumns[] = {
    {Cell::kTree, "tree", "`--sum_order=tree`, `--micro_batches`"},
    {Cell::kDeterministic, "deterministic", "bits follow from flags and seed"},
    {Cell::kAutoBuckets, "auto_buckets", "`--bucket_bytes=auto`"},
    {Cell::kAutoSync, "auto_sync", "measured by `--sync=auto`"},
    {Cell::kWholeGradient, "whole_gradient", "`--clip_norm`"},
    {Cell::kSecret, "secret", "`--job_secret`, `--tls`"},
    {Cell::kSiteCertificates, "site_certificates", "`--tls_ca`"},
    {Cell::kGpuMemory, "gpu_memory", "`--cuda_aware_mpi`"},
    {Cell::kElastic, "elastic", "`--elastic`"},
    {Cell::kStatus, "status", "GetStatus"},
};

std::string RowText(const std::vector<std::string>& fields) {
  return absl::StrCat("| ", absl::StrJoin(fields, " | "), " |\n");
}

}  // namespace

std::string CellsMarkdown() {
  std::vector<std::string> head = {"cell", "flags of the worker", "owners", "inside a host"};
  for (const Column& column : kColumns) head.emplace_back(column.heading);
  std::string text =
      absl::StrCat(kCellsMarkdownBegin, "\n", RowText(head), RowText(std::vector<std::string>(head.size(), "---")));
  for (const Cell& cell : Cells()) {
    std::vector<std::string> fields = {absl::StrCat("`", cell.name, "`"), absl::StrCat("`", CellFlags(cell), "`"),
                                       NameOf(kPlacements, cell.placement), NameOf(kMemories, cell.same_host)};
    for (const Column& column : kColumns) fields.emplace_back(cell.May(column.ability) ? "yes" : "-");
    text += RowText(fields);
  }
  return absl::StrCat(text, kCellsMarkdownEnd);
}

std::string CellsJson() {
  std::vector<std::string> lines;
  for (const Cell& cell : Cells()) {
    std::vector<std::string> words;
    for (const Column& column : kColumns) {
      if (cell.May(column.ability)) words.push_back(absl::StrCat("\"", column.word, "\""));
    }
    lines.push_back(absl::StrCat(" {\"name\": \"", cell.name, "\", \"topology\": \"", SyncName(cell.sync),
                                 "\", \"placement\": \"", NameOf(kPlacements, cell.placement), "\", \"transport\": \"",
                                 TransportName(cell.transport), "\", \"memory\": \"", NameOf(kMemories, cell.same_host),
                                 "\",\n  \"may\": [", absl::StrJoin(words, ", "), "]}"));
  }
  return absl::StrCat("[\n", absl::StrJoin(lines, ",\n"), "\n]\n");
}

}  // namespace starring
