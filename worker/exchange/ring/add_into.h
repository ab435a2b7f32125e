// The ring's addition.
#ifndef STARRING_WORKER_EXCHANGE_RING_ADD_INTO_H_
#define STARRING_WORKER_EXCHANGE_RING_ADD_INTO_H_

#include <span>

namespace starring {

// sum += own, element by element. REQUIRES: equal lengths, no overlap. Any alignment.
void AddInto(std::span<float> sum, std::span<const float> own);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_RING_ADD_INTO_H_
