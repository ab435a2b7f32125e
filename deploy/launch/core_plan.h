// Who may run on which cores.
#ifndef STARRING_DEPLOY_LAUNCH_CORE_PLAN_H_
#define STARRING_DEPLOY_LAUNCH_CORE_PLAN_H_

#include <span>
#include <string>
#include <vector>

namespace starring {

struct CoreDemand {
  int worker_count = 1;
  int server_count = 0;
  int cores_per_worker = 0;  // 0: an equal share of what the servers did not ask for
  int cores_per_server = 0;  // 0: what the workers leave, shared by all servers; all cores where they leave none
};

struct CorePlan {
  std::vector<std::vector<int>> workers;  // by rank
  std::vector<std::vector<int>> servers;  // by shard
};

// Workers take cores from the front of `allowed`, one after the other; servers that asked for a number take theirs from
// the back. When the demand exceeds the cores, the counting goes round, so that every core carries as many processes as
// any other, give or take one.
// REQUIRES: `allowed` is not empty; worker_count >= 1; the other numbers >= 0.
CorePlan PlanCores(std::span<const int> allowed, const CoreDemand& demand);

// The cores that this process may run on, ascending.
std::vector<int> AllowedCores();

// "0-3,5", as taskset writes it.
std::string CoreListText(std::span<const int> cores);
// The lists of several processes, "0,1;2,3", as run records have them.
std::string CoreListsText(std::span<const std::vector<int>> lists);
// Reads what CoreListsText wrote. REQUIRES: `text` came from there.
std::vector<std::vector<int>> ParseCoreLists(const std::string& text);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_CORE_PLAN_H_
