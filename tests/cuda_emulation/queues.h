// The work of the emulated streams: queues of pieces, and how they make progress.
//
// emulated_gpu.h says when a piece runs: at once, as late as possible, or by itself. A queue's pieces run one after
// another. Where streams are late, the host's waits run them. Where they are asynchronous, one thread of the process
// does, which never blocks: a piece that waits for another queue or for a value parks its queue, and others go on.
//
// Thread safety: any thread.
#ifndef STARRING_TESTS_CUDA_EMULATION_QUEUES_H_
#define STARRING_TESTS_CUDA_EMULATION_QUEUES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace starring::cuda_emulation {

struct Queue;

// The point after the first `count` pieces of a queue. Without a queue it is always reached.
struct Point {
  std::shared_ptr<Queue> queue;
  int64_t count = 0;
};

struct Piece {
  Point follows;                   // begins when this is reached
  std::function<bool()> is_ready;  // and this is true; empty: it is. Called often, and never while the piece runs
  std::function<void()> run;       // empty: there is nothing to do
};

// Members are for queues.cc, whose mutex guards them.
struct Queue {
  std::deque<Piece> pieces;  // the first one may be running
  int64_t done_count = 0;
  bool runs = false;
  int held_turns = -1;  // turns for which the first piece is still held back; -1: not drawn yet
};

Point EndOf(const std::shared_ptr<Queue>& queue);

// Runs the piece if streams are synchronous, and waits until it may begin. Otherwise the piece is left in the queue.
// Fails with cudaErrorLaunchTimeout at the deadline of a wait.
cudaError_t Append(const std::shared_ptr<Queue>& queue, Piece piece);

// The host's waits: for a point, and for all queues. Fail with cudaErrorLaunchTimeout at the deadline.
cudaError_t Await(const Point& point);
cudaError_t AwaitAll();

// For hosts that ask again and again. Late streams do a piece of work that leads to the point, if one may begin.
bool IsReached(const Point& point);

// While one exists, asynchronous queues begin no piece: pieces that are appended meanwhile are there all at once.
class Pause {
 public:
  enum class Running { kGoesOn, kIsAwaited };  // the piece that runs when the pause begins
  explicit Pause(Running running = Running::kGoesOn);
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
};

// Streams say when they begin and end. The order of asynchronous streams restarts from the seed with the first one.
void BeginStream();
void EndStream();

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_QUEUES_H_
