// The table of cells as a page and the programs of bench/ read it.
#ifndef STARRING_COMMON_JOB_CELL_PAGES_H_
#define STARRING_COMMON_JOB_CELL_PAGES_H_

#include <string>

namespace starring {

// A table in Markdown of all cells with what each may do. Begins and ends with the lines below, by which a program
// finds an older table to replace.
inline constexpr char kCellsMarkdownBegin[] = "<!-- cells: written by bazel run //worker/options:flag_pages -->";
inline constexpr char kCellsMarkdownEnd[] = "<!-- end of cells -->";
std::string CellsMarkdown();

// All cells in JSON: name, topology, placement, transport, memory ("messages" or "shared memory"), and a list of what
// the cell may do.
std::string CellsJson();

}  // namespace starring

#endif  // STARRING_COMMON_JOB_CELL_PAGES_H_
