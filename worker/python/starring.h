// Sums over the processes of a training job, by a star or a ring over TCP: the C interface of libstarring.so.
//
// A *group* is one process's place among `world_size` processes, its *ranks*, which meet at one address. All ranks make
// the same calls of st_allreduce in the same order. The group's own thread exchanges the arrays, and the sum is in
// every rank's array when st_wait returns ST_OK. A process may have several groups, each with its own thread and
// connections.
//
//   ST_STAR   Every element has one owner, which adds the contributions of all ranks and sends the sum to all. The
//             owners are the ranks, or `server_count` further processes, the servers. The sum of the ranks [a, b) is
//             the sum of [a, m) plus the sum of [m, b), where m - a is the largest power of two below b - a. So the
//             bits of a sum depend on the contributions alone: neither on how arrays are cut into calls, nor on the
//             number of servers.
//   ST_RING   Partial sums travel from rank to rank. With three ranks or more the order of the additions, and with it
//             the last bits of a sum, depends on where the element is in the array of its call.
//
// Bfloat16 and float16 are widened to float32, added, divided, and rounded once, to the nearest, ties to even.
//
// GPU memory. Ranks of one host whose arrays are on GPUs can ask for a group that adds them there: each rank maps the
// others' memory by CUDA's IPC. An array is copied twice on its GPU, and never to a host. Either all ranks do so, or
// none: st_describe says which, and why. Then arrays in host memory are added, and st_allreduce_gpu is refused. The
// bits are the same, but for those of a NaN. The library needs the driver, libcuda.so.1, for such a group alone.
//
// Errors. A call returns one of the codes below, and st_last_error has the sentence. ST_PEER, ST_INTERNAL, and
// ST_INVALID because ranks disagree, break the group on every rank: all its tickets end with the error, further calls
// return it, and only st_close is of use.
//
// Threads. Several threads may use a group at the same time. Only st_close must be the last call.
//
// fork. A group belongs to the process that opened it. In a child of fork every call on it returns ST_INVALID and has
// no effect, also st_close; the group's connections are closed there. The child may open groups of its own.
#ifndef STARRING_WORKER_PYTHON_STARRING_H_
#define STARRING_WORKER_PYTHON_STARRING_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  ST_OK = 0,
  ST_TIMEOUT = 1,   // st_wait only: the sum is not there yet
  ST_INVALID = 2,   // a wrong call, or ranks that disagree about a call
  ST_PEER = 3,      // a rank or server is missing, stuck, was not admitted or gave up
  ST_INTERNAL = 4,  // the system, or this library, has failed
};

enum { ST_STAR = 0, ST_RING = 1 };
enum { ST_FLOAT32 = 0, ST_BFLOAT16 = 1, ST_FLOAT16 = 2 };

typedef struct st_group st_group;

typedef struct st_options {
  uint32_t struct_bytes;   // sizeof(st_options)
  int32_t rank;            // 0 to world_size - 1; st_serve: world_size + the number of the server
  int32_t world_size;      // processes that train
  int32_t server_count;    // 0: the ranks own the elements; otherwise that many servers do, with ST_STAR only
  int32_t topology;        // ST_STAR or ST_RING
  const char* rendezvous;  // host:port, where rank 0 listens
  int32_t listener;        // rank 0: a socket that listens there, which st_open takes even if it fails; -1: none
  const char* port_range;  // "7000-7100": from which ranks other than 0 take a port to listen at; null: any free one
  const char* group_name;  // the same on all ranks; ranks of another group are refused
  const uint8_t* token;    // 32 bytes that only processes of this job know, or null
  int32_t insecure;        // 1: ranks of several hosts may meet without a token
  double join_deadline_s;  // how long st_open may take
  double exchange_deadline_s;  // how long a sum may make no progress before the group is broken
  double stall_report_s;       // how long st_open or a sum may make no progress before `say` is told who is the cause
  // Gets lines for people, without a line feed. Any thread may call it, during any call or between calls; it must not
  // use the group. May be null.
  void (*say)(void* context, const char* line);
  void* say_context;
  int32_t gpu_memory;  // 1: the ranks want to add arrays in GPU memory; the same on all
  int32_t gpu;         // then: the number of this rank's GPU, among those that it sees; -1: its arrays are on none
  // Then: the GPU memory for sums that are under way, at least what the longest takes: its bytes, or, of 16-bit
  // elements in a ring, three times its bytes. Later sums wait for a place.
  int64_t gpu_bytes;
} st_options;

// Meets the other ranks; returns when all are connected, at the latest after join_deadline_s and some seconds.
// ST_INVALID: an option is wrong, or ranks have different options. ST_PEER: a rank is missing, or not admitted.
int st_open(const st_options* options, st_group** group);

// Is a server of a group: meets the others as st_open does, adds, and returns ST_OK when all ranks have closed the
// group, or an error when it breaks. Blocks until then. It needs memory for a few messages of every rank, and keeps
// nothing.
int st_serve(const st_options* options);

// Begins the sum over all ranks of the `count` elements at `data`, in place, divided by `divisor` (1: the sum itself).
// Returns at once. `data` is aligned for its type, and belongs to the group until st_wait returns ST_OK or an error for
// `ticket`. The n-th calls of all ranks must have the same `step`, `bucket`, `layout` (a hash of what the array
// contains), `count`, `type` and `divisor`; if not, the group is broken, and the sentence has both ranks and both
// values. ST_INVALID, too, if a thousand sums are under way.
int st_allreduce(st_group* group, int64_t step, int32_t bucket, uint64_t layout, void* data, int64_t count,
                 int32_t type, float divisor, int64_t* ticket);

// The same for an array on the group's GPU, in a group that adds in GPU memory. `stream` is the CUDA stream whose work
// until now makes the contribution. When st_wait returns ST_OK, the sum is there for all streams.
int st_allreduce_gpu(st_group* group, int64_t step, int32_t bucket, uint64_t layout, void* data, int64_t count,
                     int32_t type, float divisor, void* stream, int64_t* ticket);

typedef struct st_description {
  uint32_t struct_bytes;       // sizeof(st_description), set by the caller
  int32_t adds_in_gpu_memory;  // 1: it does
  const char* why_not;    // the first rank's reason; empty: it does, or was not asked to; valid as long as the group
  int64_t device_copies;  // of arrays on the GPU, begun so far: two for each sum
} st_description;

// Fills `description`.
int st_describe(st_group* group, st_description* description);

// Sleeps until the sum of `ticket` is complete, for `milliseconds` at most (0: only looks). ST_OK or an error ends the
// ticket, which must not be used again. ST_TIMEOUT: wait again. As the group is broken after exchange_deadline_s
// without progress, waiting again and again ends.
int st_wait(st_group* group, int64_t ticket, int64_t milliseconds);

// The sentence of this thread's last call that failed, for st_open and st_serve with a null group. Never null. Valid
// until this thread's next call.
const char* st_last_error(const st_group* group);

// Breaks the group on every rank, for the reason `why`. Returns when the other ranks have been told, after a few
// seconds at most.
int st_abort(st_group* group, const char* why);

// Leaves and frees the group. If a ticket has not ended, the group is broken on the other ranks; otherwise these may go
// on until they need this rank. In GPU memory it waits up to ten seconds for the others to close the group as well, and
// otherwise leaves its memory to the end of the process. `group` may be null.
int st_close(st_group* group);

#ifdef __cplusplus
}
#endif

#endif  // STARRING_WORKER_PYTHON_STARRING_H_
