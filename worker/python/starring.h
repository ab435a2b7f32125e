/* Sums over the processes of a training job, by a star or a ring over TCP: the C interface of libstarring.so.
 *
 * A *group* is one process's place among `world_size` processes, its *ranks*, which meet at one address. Every rank
 * makes the same calls of st_allreduce in the same order; the group's own thread exchanges, and every rank has the sum
 * in its array when st_wait returns ST_OK. A process may have several groups; each has a thread and connections of its
 * own.
 *
 *   ST_STAR   every element has one owner, which adds the contributions of all ranks and sends the sum to all. The
 *             owners are the ranks, or `server_count` further processes. The sum of the ranks [a, b) is the sum of
 *             [a, m) plus that of [m, b), where m - a is the largest power of two below b - a. So the bits depend on
 *             nothing but the contributions: neither on how an array is cut in calls, nor on the number of servers.
 *   ST_RING   partial sums travel from rank to rank. The order of additions, and with it the last bits of a sum of
 *             three ranks or more, depends on where an element is in its call's array.
 *
 * Bfloat16 and float16 are widened to float32, added in float32, divided, and rounded once, to the nearest even.
 *
 * Errors. A call returns one of the codes below; st_last_error has the sentence. After ST_PEER or ST_INTERNAL from
 * st_wait, or ST_INVALID because ranks disagree, the group is *broken* on every rank: each ticket that is not complete
 * ends with the same error, further calls return it, and only st_close is of use.
 *
 * Threads. All functions but st_open and st_close may be called from several threads at once. st_close must not run
 * while another call on the group does.
 *
 * fork. A group belongs to the process that opened it. In a child of fork every call on it is ST_INVALID, also st_close,
 * which frees nothing; the parent's group is not disturbed. A child may open groups of its own. */
#ifndef STARRING_WORKER_PYTHON_STARRING_H_
#define STARRING_WORKER_PYTHON_STARRING_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  ST_OK = 0,
  ST_TIMEOUT = 1,  /* st_wait only: the sum is not there yet */
  ST_INVALID = 2,  /* a wrong call, or ranks that disagree about a call */
  ST_PEER = 3,     /* a rank or server is missing, stuck, gave up, or was not admitted */
  ST_INTERNAL = 4, /* the system or this library has failed */
};

enum { ST_STAR = 0, ST_RING = 1 };
enum { ST_FLOAT32 = 0, ST_BFLOAT16 = 1, ST_FLOAT16 = 2 };

typedef struct st_group st_group;

typedef struct st_options {
  uint32_t struct_bytes;   /* sizeof(st_options) */
  int32_t rank;            /* 0 to world_size - 1 */
  int32_t world_size;      /* processes that train */
  int32_t server_count;    /* 0: the ranks own the elements; else that many servers do; ST_STAR only */
  int32_t topology;        /* ST_STAR, ST_RING */
  const char* rendezvous;  /* host:port where rank 0 listens */
  int32_t listener;        /* rank 0: a socket that listens there, which st_open takes over even if it fails; else -1 */
  const char* group_name;  /* equal on all ranks; a rank of another group is refused */
  const uint8_t* token;    /* 32 bytes that all ranks know and nobody else, or null */
  int32_t insecure;        /* 1: meet beyond the loopback without a token */
  double join_deadline_s;  /* for st_open */
  double exchange_deadline_s; /* without progress, after which a call of st_allreduce has failed */
  double stall_report_s;      /* without progress, after which `say` is told why */
  /* Takes a line about a stall, without a line feed. Called from any thread, also while this process is in a call;
   * must not call into the group. May be null. */
  void (*say)(void* context, const char* line);
  void* say_context;
} st_options;

/* Meets the other ranks. Blocks until all are there, or for `join_deadline_s`. ST_INVALID: an option is wrong, or ranks
 * have different ones, both of which the error names. ST_PEER: somebody is missing, whom it names, or is not admitted. */
int st_open(const st_options* options, st_group** group);

/* Begins the sum over all ranks of `count` elements at `data`, in place, divided by `divisor` (1: the sum itself).
 * Returns at once. `data` is aligned for its type and belongs to the group until st_wait returns anything but ST_TIMEOUT
 * for `ticket`. `step`, `bucket`, `layout` (a hash of what is in the array), `count`, `type` and `divisor` are equal on
 * all ranks in the n-th call; otherwise that call fails on every rank, with both values and ranks named. */
int st_allreduce(st_group* group, int64_t step, int32_t bucket, uint64_t layout, void* data, int64_t count,
                 int32_t type, float divisor, int64_t* ticket);

/* Waits until the sum of `ticket` is there, at most `milliseconds` (0: only looks). ST_OK or an error ends the ticket,
 * which is then unknown. ST_TIMEOUT: it goes on, wait again; the exchange itself fails after exchange_deadline_s without
 * progress, so waiting again always ends. */
int st_wait(st_group* group, int64_t ticket, int64_t milliseconds);

/* The sentence of the last call of this thread on `group` that failed; with a null group that of st_open. Valid until
 * this thread's next call. Never null. */
const char* st_last_error(const st_group* group);

/* Breaks the group on every rank, with `why` as the reason. */
int st_abort(st_group* group, const char* why);

/* Ends the group and frees it. With tickets outstanding the other ranks learn that this rank gave up; without, they may
 * go on until they need it. Waits for nobody longer than exchange_deadline_s. `group` may be null. */
int st_close(st_group* group);

#ifdef __cplusplus
}
#endif

#endif /* STARRING_WORKER_PYTHON_STARRING_H_ */
