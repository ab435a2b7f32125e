#include "deploy/launch/core_plan.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

// `count` cores from position `first` on, going round at the end, each core once.
std::vector<int> Take(std::span<const int> cores, int first, int count) {
  const int size = static_cast<int>(cores.size());
  std::set<int> taken;
  for (int i = 0; i < std::min(count, size); ++i) taken.insert(cores[static_cast<size_t>((first + i) % size)]);
  return {taken.begin(), taken.end()};
}

}  // namespace

CorePlan PlanCores(std::span<const int> allowed, const CoreDemand& demand) {
  const int size = static_cast<int>(allowed.size());
  int per_worker = demand.cores_per_worker;
  if (per_worker == 0) {
    per_worker = std::max(1, (size - demand.server_count * demand.cores_per_server) / demand.worker_count);
  }
  CorePlan plan;
  std::set<int> left(allowed.begin(), allowed.end());
  for (int worker = 0; worker < demand.worker_count; ++worker) {
    plan.workers.push_back(Take(allowed, worker * per_worker, per_worker));
    for (const int core : plan.workers.back()) left.erase(core);
  }
  const std::vector<int> backwards(allowed.rbegin(), allowed.rend());
  for (int server = 0; server < demand.server_count; ++server) {
    if (demand.cores_per_server > 0) {
      plan.servers.push_back(Take(backwards, server * demand.cores_per_server, demand.cores_per_server));
    } else if (!left.empty()) {
      plan.servers.emplace_back(left.begin(), left.end());
    } else {
      plan.servers.emplace_back(allowed.begin(), allowed.end());
    }
  }
  return plan;
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  // A machine with more cores than a cpu_set_t holds: unpinned on "core 0" is worse than the kernel's own choice, but
  // such a machine has its own launcher.
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::string CoreListText(std::span<const int> cores) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < cores.size();) {
    size_t end = begin + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    parts.push_back(end - begin == 1 ? absl::StrCat(cores[begin]) : absl::StrCat(cores[begin], "-", cores[end - 1]));
    begin = end;
  }
  return absl::StrJoin(parts, ",");
}

std::string CoreListsText(std::span<const std::vector<int>> lists) {
  return absl::StrJoin(lists, ";", [](std::string* out, const std::vector<int>& cores) {
    absl::StrAppend(out, absl::StrJoin(cores, ","));
  });
}

std::vector<std::vector<int>> ParseCoreLists(const std::string& text) {
  std::vector<std::vector<int>> lists;
  for (const absl::string_view list : absl::StrSplit(text, ';')) {
    std::vector<int>& cores = lists.emplace_back();
    for (const absl::string_view word : absl::StrSplit(list, ',', absl::SkipEmpty())) {
      int core = 0;
      if (absl::SimpleAtoi(word, &core)) cores.push_back(core);
    }
  }
  return lists;
}

}  // namespace starring
