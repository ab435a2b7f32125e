// How a star's arrays travel between processes of one machine.
#ifndef STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_
#define STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_

namespace starring {

// kSharedMemory, with servers: where memory can be shared with every server, else as kSocket. Without servers the ranks
// share memory, or refuse to start.
enum class SameHost { kSharedMemory, kSocket };

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_SAME_HOST_H_
