#include "deploy/launch/status_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"

namespace starring {

std::string StatusText(const RunStatus& run) {
  std::string text = absl::StrCat("generation ", run.generation, ", step ", run.step, " of ", run.end_step,
                                  ", from step ", run.first_step, "\n");
  if (run.generation == 0) text = "no generation has begun\n";
  // Members choose their names, and a cause quotes them.
  if (run.changing) absl::StrAppend(&text, "waiting for the next generation, after: ", Printable(run.cause), "\n");
  for (const int shard : run.missing_shards) absl::StrAppend(&text, "shard ", shard, " is missing\n");
  for (const RunStatus::Member& member : run.members) {
    absl::StrAppend(&text, Printable(member.name), ": ", Printable(member.what), "\n");
  }
  absl::StrAppend(&text, "snapshots of steps ", absl::StrJoin(run.snapshots, ", "), "\n");
  return text;
}

}  // namespace starring
