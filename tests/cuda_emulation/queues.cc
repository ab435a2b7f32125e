#include "tests/cuda_emulation/queues.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/memory.h"

namespace starring::cuda_emulation {
namespace {

using Clock = std::chrono::steady_clock;

// How long a value that another process or the host writes may go unseen.
constexpr std::chrono::microseconds kPollInterval{50};
// Nothing is awaited for longer without a look at the deadline.
constexpr std::chrono::milliseconds kLookInterval{10};

struct Scheduler {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Queue>> queues;  // that have work
  int64_t ended_count = 0;                     // pieces
  int paused = 0, running = 0, streams = 0;
  bool has_executor = false, is_async = false;
  uint64_t random = 1;
};
Scheduler& TheScheduler() {
  static Scheduler& scheduler = *new Scheduler;  // its thread outlives main
  return scheduler;
}

using Lock = std::unique_lock<std::mutex>;

bool IsPassed(const Point& point) { return point.queue == nullptr || point.queue->done_count >= point.count; }

bool IsReady(const Piece& piece) { return IsPassed(piece.follows) && (!piece.is_ready || piece.is_ready()); }

// Over when no piece has ended for the time of the deadline.
class Patience {
 public:
  bool IsOver() {
    if (const int64_t now_ended = TheScheduler().ended_count; now_ended != ended_count_) {
      ended_count_ = now_ended;
      end_ = Clock::now() + Limit();
    }
    return Clock::now() > end_;
  }

 private:
  static std::chrono::milliseconds Limit() { return std::chrono::milliseconds(Gpu().wait_deadline_ms); }
  int64_t ended_count_ = -1;
  Clock::time_point end_ = {};
};

cudaError_t Timeout() {
  const Scheduler& scheduler = TheScheduler();
  const auto parked =
      std::ranges::count_if(scheduler.queues, [](const auto& q) { return !IsReady(q->pieces.front()); });
  std::fprintf(stderr,
               "CUDA emulation: the host gives up a wait, since no work has ended for %d ms. Queues with work: %zu; "
               "their next piece waits for another queue or for a value: %td\n",
               Gpu().wait_deadline_ms, scheduler.queues.size(), static_cast<std::ptrdiff_t>(parked));
  return cudaErrorLaunchTimeout;
}

// Runs the first piece.
void RunFirst(const std::shared_ptr<Queue>& queue, Lock& lock) {
  Scheduler& scheduler = TheScheduler();
  queue->runs = true;
  ++scheduler.running;
  const std::function<void()> run = std::move(queue->pieces.front().run);
  lock.unlock();
  if (run) RunWork(run);
  lock.lock();
  queue->pieces.pop_front();
  ++queue->done_count;
  queue->runs = false;
  queue->held_turns = -1;
  --scheduler.running;
  ++scheduler.ended_count;
  if (queue->pieces.empty()) std::erase(scheduler.queues, queue);
  scheduler.changed.notify_all();
}

// Late streams.

// The state of a queue on its way to a point.
enum class Step { kReached, kRuns, kMayBegin, kWaitsForValue };

// `goals`: the last one is needed first. Adds the points that must be reached before it.
Step NextStep(std::vector<Point>* goals) {
  while (!goals->empty()) {
    const Point& goal = goals->back();
    if (IsPassed(goal)) {
      goals->pop_back();
    } else if (goal.queue->runs) {  // by another thread
      return Step::kRuns;
    } else if (const Piece& first = goal.queue->pieces.front(); !IsPassed(first.follows)) {
      goals->push_back(Point(first.follows));
    } else {
      return IsReady(first) ? Step::kMayBegin : Step::kWaitsForValue;
    }
  }
  return Step::kReached;
}

cudaError_t RunTo(const Point& point) {
  Scheduler& scheduler = TheScheduler();
  Lock lock(scheduler.mutex);
  std::vector<Point> goals = {point};
  Patience patience;
  for (Step step = NextStep(&goals); step != Step::kReached; step = NextStep(&goals)) {
    if (step == Step::kMayBegin) {
      RunFirst(std::shared_ptr<Queue>(goals.back().queue), lock);
      continue;
    }
    scheduler.changed.wait_for(lock, kPollInterval);
    if (patience.IsOver()) return Timeout();
  }
  return cudaSuccess;
}

// Asynchronous streams.

uint64_t Draw() {
  uint64_t& random = TheScheduler().random;
  random = random * 6364136223846793005u + 1442695040888963407u;
  return random >> 33;
}

// Most pieces begin when they can, some a few turns later, few much later.
int DrawHeldTurns() {
  const uint64_t kind = Draw() % 16;
  if (kind < 12) return 0;
  return static_cast<int>(1 + Draw() % (kind < 15 ? 4 : 32));
}

// Returns a queue whose first piece may begin, or null if there is none. *looks_again then says whether there may be
// one later although no queue has changed.
std::shared_ptr<Queue> Choose(bool* looks_again) {
  Scheduler& scheduler = TheScheduler();
  // A test may have made the streams of a later device late.
  if (scheduler.paused > 0 || !scheduler.is_async) return nullptr;
  std::vector<std::shared_ptr<Queue>> ready;
  for (const std::shared_ptr<Queue>& queue : scheduler.queues) {
    const Piece& first = queue->pieces.front();
    if (!IsPassed(first.follows)) continue;
    if (!IsReady(first)) {
      *looks_again = true;
      continue;
    }
    if (queue->held_turns < 0) queue->held_turns = DrawHeldTurns();
    if (queue->held_turns > 0) {
      --queue->held_turns;
      *looks_again = true;
    } else {
      ready.push_back(queue);
    }
  }
  return ready.empty() ? nullptr : ready[Draw() % ready.size()];
}

[[noreturn]] void Execute() {
  Scheduler& scheduler = TheScheduler();
  Lock lock(scheduler.mutex);
  for (;;) {
    bool looks_again = false;
    const std::shared_ptr<Queue> queue = Choose(&looks_again);
    if (queue != nullptr) {
      RunFirst(queue, lock);
    } else if (looks_again) {
      scheduler.changed.wait_for(lock, kPollInterval);
    } else {
      scheduler.changed.wait(lock);
    }
  }
}

template <typename Done>
cudaError_t AwaitExecutor(Lock& lock, Done is_done) {
  Patience patience;
  while (!is_done()) {
    TheScheduler().changed.wait_for(lock, kLookInterval);
    if (patience.IsOver() && !is_done()) return Timeout();
  }
  return cudaSuccess;
}

cudaError_t RunNow(const Piece& piece) {
  Patience patience;
  while (piece.is_ready && !piece.is_ready()) {
    std::this_thread::sleep_for(kPollInterval);
    const Lock lock(TheScheduler().mutex);
    if (patience.IsOver()) return Timeout();
  }
  if (piece.run) RunWork(piece.run);
  return cudaSuccess;
}

}  // namespace

Point EndOf(const std::shared_ptr<Queue>& queue) {
  const Lock lock(TheScheduler().mutex);
  return {.queue = queue, .count = queue->done_count + std::ssize(queue->pieces)};
}

cudaError_t Append(const std::shared_ptr<Queue>& queue, Piece piece) {
  if (!Gpu().late && !Gpu().async) return RunNow(piece);
  Scheduler& scheduler = TheScheduler();
  const Lock lock(scheduler.mutex);
  if (queue->pieces.empty()) scheduler.queues.push_back(queue);
  queue->pieces.push_back(std::move(piece));
  scheduler.is_async = Gpu().async;
  if (scheduler.is_async && !scheduler.has_executor) {
    scheduler.has_executor = true;
    std::thread(Execute).detach();
  }
  scheduler.changed.notify_all();
  return cudaSuccess;
}

cudaError_t Await(const Point& point) {
  if (!Gpu().async) return RunTo(point);
  Lock lock(TheScheduler().mutex);
  return AwaitExecutor(lock, [&] { return IsPassed(point); });
}

cudaError_t AwaitAll() {
  Scheduler& scheduler = TheScheduler();
  Lock lock(scheduler.mutex);
  if (Gpu().async) return AwaitExecutor(lock, [&] { return scheduler.queues.empty(); });
  const std::vector<std::shared_ptr<Queue>> queues = scheduler.queues;
  lock.unlock();
  for (const std::shared_ptr<Queue>& queue : queues) {
    if (const cudaError_t error = RunTo(EndOf(queue)); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool IsReached(const Point& point) {
  Lock lock(TheScheduler().mutex);
  if (Gpu().late) {
    std::vector<Point> goals = {point};
    if (NextStep(&goals) == Step::kMayBegin) RunFirst(std::shared_ptr<Queue>(goals.back().queue), lock);
  }
  return IsPassed(point);
}

Pause::Pause(Running running) {
  Scheduler& scheduler = TheScheduler();
  Lock lock(scheduler.mutex);
  ++scheduler.paused;
  // At the deadline, which is reported, the caller goes on: it has a result of its own to give.
  if (running == Running::kIsAwaited) (void)AwaitExecutor(lock, [&] { return scheduler.running == 0; });
}

Pause::~Pause() {
  const Lock lock(TheScheduler().mutex);
  --TheScheduler().paused;
  TheScheduler().changed.notify_all();
}

void BeginStream() {
  const Lock lock(TheScheduler().mutex);
  if (TheScheduler().streams++ == 0) TheScheduler().random = Gpu().async_seed;
}

void EndStream() {
  const Lock lock(TheScheduler().mutex);
  --TheScheduler().streams;
}

}  // namespace starring::cuda_emulation
