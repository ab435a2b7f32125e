// Deals the leaves of a step that is computed again to check it: each to another worker than before.
//
// Thread safety: pure functions.
#ifndef STARRING_SERVER_ELASTIC_DEAL_APART_H_
#define STARRING_SERVER_ELASTIC_DEAL_APART_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace starring {

struct Deal {
  std::vector<uint64_t> workers;  // by rank
  std::vector<int> leaf_owners;   // by leaf its rank; every worker has one
};

// `before` has each leaf's worker. Workers that can have no leaf are left out of the deal. If all others are as they
// were, each share goes to the next worker as a whole. No leaf of one worker alone has another; then it gets all.
// REQUIRES: 1 <= workers.size() <= before.size(); workers differ; all seconds are above 0 and finite.
Deal DealApart(std::vector<uint64_t> workers, const std::vector<uint64_t>& before,
               const std::function<double(uint64_t worker)>& seconds_per_leaf);

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_DEAL_APART_H_
