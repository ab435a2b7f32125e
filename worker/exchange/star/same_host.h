// How a star's arrays travel between a worker and the servers of its own machine.
#ifndef STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_
#define STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_

namespace starring {

// kSharedMemory: where memory can be shared with every server, else as kSocket.
enum class SameHost { kSharedMemory, kSocket };

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_
