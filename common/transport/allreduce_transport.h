// A transport over a library that has an allreduce of its own: MPI (common/transport/mpi/mpi_transport.h), and NCCL
// (worker/exchange/peer/nccl/nccl_transport.h).
#ifndef STARRING_COMMON_TRANSPORT_ALLREDUCE_TRANSPORT_H_
#define STARRING_COMMON_TRANSPORT_ALLREDUCE_TRANSPORT_H_

#include <span>

#include "common/transport/transport.h"

namespace starring {

class AllreduceTransport : public Transport {
 public:
  // sum = element-wise sum over all ranks of `contribution`, in the order that the library chooses. All ranks post
  // their allreduces in the same order. `contribution` and `sum` do not overlap.
  virtual void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_ALLREDUCE_TRANSPORT_H_
