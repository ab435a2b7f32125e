// The abilities of a transport over MPI beyond transport.h: the library's own allreduce, and memory of a GPU as the
// data of messages. This header is separate and does not include MPI, so that users of the interface do not link the
// library.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_TRANSPORT_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_TRANSPORT_H_

#include "common/transport/allreduce_transport.h"

namespace starring {

class MpiTransport : public AllreduceTransport {
 public:
  // Whether the library claims that the data of sends and receives may be memory of a GPU. The claim may be wrong:
  // cuda_aware/cuda_aware_owner.h tests it.
  virtual bool moves_device_memory() const = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_TRANSPORT_H_
