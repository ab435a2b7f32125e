// Grids, on fibres.
//
// A fibre runs the threads of a block one after another, without switching, until a thread has to wait. The next fibre
// then continues with the threads that have not begun. So a kernel that never synchronises costs one call per thread.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(STARRING_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

#include "tests/cuda_emulation/emulated_gpu.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

#if defined(__x86_64__)
// Saves the registers that a called function must keep (System V ABI) on this stack, stores its top in *from, and
// continues where the stack with the top `to` stopped. swapcontext, which other CPUs use, does the same with a system
// call: batch norm's tests take 15 s with it and 3 s without.
extern "C" void starring_switch_stack(void** from, void* to);
constexpr int kSavedRegisters = 6;
asm(R"(
.text
.globl starring_switch_stack
.type starring_switch_stack, @function
starring_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size starring_switch_stack, .-starring_switch_stack
)");
#endif

namespace starring::cuda_emulation {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kBlockThreadsMax = 1024;
constexpr size_t kStackBytes = 256 << 10;

[[noreturn]] void Die(const char* what, int thread, int other) {
  std::fprintf(stderr, "CUDA emulation: block (%u, %u, %u): %s: thread %d, thread %d\n", blockIdx.x, blockIdx.y,
               blockIdx.z, what, thread, other);
  std::abort();
}

// Decides from which end a block's threads, a grid's blocks and the waiters of a barrier are taken, in a fixed sequence
// without a pattern. With one order only, a thread that reads its neighbour's value without a barrier might always find
// it.
class Turns {
 public:
  bool Backwards() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 63 != 0;
  }

 private:
  uint64_t state_ = 1;
};

enum class State { kNotBegun, kRuns, kWaitsForBlock, kWaitsForWarp, kEnded };

struct Thread {
  State state = State::kEnded;
  WarpOperation operation = WarpOperation::kSync;
  unsigned mask = 0;
  uint64_t value = 0;
  int source = 0;
  uint64_t result = 0;
};

// A stack that code runs on. AddressSanitizer must be told of every change of stack.
class Stack {
 public:
  explicit Stack(void (*body)()) : memory_(new char[kStackBytes]) {
#if defined(__x86_64__)
    // The stack looks as if `body` had been called without a caller, and had then switched away: see
    // starring_switch_stack.
    auto* top = reinterpret_cast<uintptr_t*>(memory_.get() + kStackBytes);  // aligned to 16 bytes, as the ABI wants
    *--top = 0;
    *--top = reinterpret_cast<uintptr_t>(body);
    for (int i = 0; i < kSavedRegisters; ++i) *--top = 0;
    place_ = top;
#else
    getcontext(&place_);
    place_.uc_stack.ss_sp = memory_.get();
    place_.uc_stack.ss_size = kStackBytes;
    makecontext(&place_, body, 0);
#endif
  }
  Stack() = default;  // of the thread that runs the scheduler

  // Switches from this stack to `to`; returns when another stack switches back.
  void SwitchTo(Stack& to) {
#if defined(STARRING_ASAN)
    void* fake = nullptr;
    to.came_from_ = this;
    __sanitizer_start_switch_fiber(&fake, to.bottom(), to.size());
    Switch(&place_, &to.place_);
    __sanitizer_finish_switch_fiber(fake, &came_from_->bottom_, &came_from_->size_);
#else
    Switch(&place_, &to.place_);
#endif
  }
  // The first function on a new stack.
  void Begin() {
#if defined(STARRING_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &came_from_->bottom_, &came_from_->size_);
#endif
  }

 private:
#if defined(__x86_64__)
  using Place = void*;
  static void Switch(Place* from, const Place* to) { starring_switch_stack(from, *to); }
  Place place_ = nullptr;
#else
  using Place = ucontext_t;
  static void Switch(Place* from, const Place* to) { swapcontext(from, to); }
  Place place_ = {};
#endif
  std::unique_ptr<char[]> memory_;
#if defined(STARRING_ASAN)
  const void* bottom() const { return memory_ ? memory_.get() : bottom_; }
  size_t size() const { return memory_ ? kStackBytes : size_; }
  Stack* came_from_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
#endif
};

class Block {
 public:
  void Run(int threads, const std::function<void()>& body) {
    body_ = &body;
    thread_count_ = threads;
    next_thread_ = 0;
    waiting_for_block_ = 0;
    backwards_ = turns_.Backwards();
    for (int t = 0; t < threads; ++t) threads_[t].state = State::kNotBegun;
    for (;;) {
      if (!ready_.empty()) {
        const Waiter waiter = ready_.back();
        ready_.pop_back();
        Resume(waiter.fibre, waiter.thread);
      } else if (next_thread_ < thread_count_) {
        Resume(TakeFibre(), -1);
      } else {
        break;
      }
    }
    CheckNobodyWaits();
  }

  // For the thread that runs.
  int current() const { return current_; }

  void Sync() {
    threads_[current_].state = State::kWaitsForBlock;
    if (++waiting_for_block_ == thread_count_) {
      waiting_for_block_ = 0;
      const bool backwards = turns_.Backwards();
      for (int t = 0; t < thread_count_; ++t) Release(backwards ? t : thread_count_ - 1 - t);
    }
    Wait();
  }

  uint64_t Meet(WarpOperation operation, unsigned mask, uint64_t value, int source) {
    const int lane = current_ % kWarpThreads, first = current_ - lane;
    if ((mask >> lane & 1) == 0) Die("a thread is not in its own warp mask", current_, current_);
    if (operation == WarpOperation::kShuffle && (mask >> source & 1) == 0) {
      Die("a thread shuffles from a lane outside the mask", current_, first + source);
    }
    Thread& me = threads_[current_];
    me = {State::kWaitsForWarp, operation, mask, value, source, 0};
    // The last lane to arrive answers for all, so every earlier lane leaves this loop with lanes missing.
    unsigned arrived = 0;
    for (int l = 0; l < kWarpThreads && first + l < thread_count_; ++l) {
      const Thread& other = threads_[first + l];
      if ((mask >> l & 1) == 0 || other.state != State::kWaitsForWarp) continue;
      if (other.mask != mask || other.operation != operation) {
        Die("two threads of a warp meet in different operations or masks", current_, first + l);
      }
      arrived |= 1u << l;
    }
    if (arrived == (mask & Existing(first))) Answer(first, mask);
    Wait();
    return threads_[current_].result;
  }

 private:
  struct Waiter {
    int fibre, thread;
  };

  static void FibreBody();

  unsigned Existing(int first) const {
    const int lanes = thread_count_ - first;
    return lanes >= kWarpThreads ? 0xffffffffu : (1u << lanes) - 1;
  }

  void Answer(int first, unsigned mask) {
    unsigned ballot = 0;
    for (int l = 0; l < kWarpThreads; ++l) {
      if ((mask >> l & 1) != 0 && first + l < thread_count_ && threads_[first + l].value != 0) ballot |= 1u << l;
    }
    for (int l = 0; l < kWarpThreads; ++l) {
      if ((mask >> l & 1) == 0 || first + l >= thread_count_) continue;
      Thread& thread = threads_[first + l];
      thread.result = thread.operation == WarpOperation::kBallot ? ballot : threads_[first + thread.source].value;
    }
    const bool backwards = turns_.Backwards();
    for (int i = 0; i < kWarpThreads; ++i) {
      const int l = backwards ? i : kWarpThreads - 1 - i;
      if ((mask >> l & 1) != 0 && first + l < thread_count_) Release(first + l);
    }
  }

  void Release(int thread) {
    threads_[thread].state = State::kRuns;
    ready_.push_back({fibre_of_[thread], thread});
  }

  // Switches to the scheduler until this thread is released. Its own arrival may have released it, before its fibre was
  // noted: the waiter then gets the fibre here.
  void Wait() {
    const int thread = current_, fibre = fibre_;
    fibre_of_[thread] = fibre;
    for (Waiter& waiter : ready_) {
      if (waiter.thread == thread) waiter.fibre = fibre;
    }
    fibres_[static_cast<size_t>(fibre)]->SwitchTo(scheduler_);
  }

  int TakeFibre() {
    if (idle_.empty()) {
      fibres_.push_back(std::make_unique<Stack>(FibreBody));
      return static_cast<int>(fibres_.size()) - 1;
    }
    const int fibre = idle_.back();
    idle_.pop_back();
    return fibre;
  }

  void Resume(int fibre, int thread) {
    fibre_ = fibre;
    if (thread >= 0) Enter(thread);
    scheduler_.SwitchTo(*fibres_[static_cast<size_t>(fibre)]);
  }

  void Enter(int thread) {
    current_ = thread;
    const unsigned t = static_cast<unsigned>(thread);
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
  }

  void RunThreads() {
    while (next_thread_ < thread_count_) {
      const int thread = backwards_ ? thread_count_ - 1 - next_thread_ : next_thread_;
      ++next_thread_;
      threads_[thread].state = State::kRuns;
      Enter(thread);
      (*body_)();
      threads_[current_].state = State::kEnded;
    }
  }

  void CheckNobodyWaits() const {
    for (int t = 0; t < thread_count_; ++t) {
      if (threads_[t].state == State::kEnded) continue;
      int other = 0;
      while (other < thread_count_ - 1 && threads_[other].state == threads_[t].state) ++other;
      Die(threads_[t].state == State::kWaitsForBlock ? "a thread waits in __syncthreads, another does not come"
                                                     : "a thread waits for its warp, another lane does not come",
          t, other);
    }
  }

  const std::function<void()>* body_ = nullptr;
  int thread_count_ = 0, next_thread_ = 0, current_ = 0, fibre_ = 0, waiting_for_block_ = 0;
  Thread threads_[kBlockThreadsMax];
  int fibre_of_[kBlockThreadsMax] = {};
  bool backwards_ = false;  // threads begin with the last
  Turns turns_;
  std::vector<Waiter> ready_;  // the last is resumed first
  std::vector<std::unique_ptr<Stack>> fibres_;
  std::vector<int> idle_;
  Stack scheduler_;
};

Block& TheBlock() {
  static Block& block = *new Block;  // never destroyed, because fibres never end
  return block;
}

void Block::FibreBody() {
  Block& block = TheBlock();
  block.fibres_[static_cast<size_t>(block.fibre_)]->Begin();
  for (;;) {
    block.RunThreads();
    const int fibre = block.fibre_;
    block.idle_.push_back(fibre);
    block.fibres_[static_cast<size_t>(fibre)]->SwitchTo(block.scheduler_);
  }
}

}  // namespace

int LaneOfThisThread() { return TheBlock().current() % kWarpThreads; }

uint64_t MeetWarp(WarpOperation operation, unsigned mask, uint64_t value, int source) {
  return TheBlock().Meet(operation, mask, value, source);
}

namespace {

template <typename Word>
uint64_t Load(const void* word) {
  // C++20 has no atomic_ref of a const type.
  return std::atomic_ref<Word>(*static_cast<Word*>(const_cast<void*>(word))).load();
}

template <typename Word>
void Store(void* word, uint64_t value) {
  std::atomic_ref<Word>(*static_cast<Word*>(word)).store(static_cast<Word>(value));
}

}  // namespace

uint64_t LoadAcquire(const void* word, size_t word_bytes) {
  return word_bytes == 1 ? Load<uint8_t>(word) : word_bytes == 4 ? Load<uint32_t>(word) : Load<uint64_t>(word);
}

void StoreRelease(void* word, size_t word_bytes, uint64_t value) {
  const auto store = word_bytes == 1 ? Store<uint8_t> : word_bytes == 4 ? Store<uint32_t> : Store<uint64_t>;
  store(word, value);
}

uint64_t GlobalTimer() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

cudaError_t EnqueueGrid(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  static const char* const refuses = std::getenv("EMULATED_GPU_REFUSES_KERNEL");
  static std::atomic<int> kernels = 0;
  if (refuses != nullptr && ++kernels == std::atoi(refuses)) return cudaErrorLaunchOutOfResources;
  const dim3 grid = config.gridDim, block = config.blockDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kBlockThreadsMax || block.z > 64 || config.dynamicSmemBytes != 0 || grid.x == 0 ||
      grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const auto run = [=, thread = std::move(thread)] {
    // threadIdx and its relatives are globals, and `__shared__` variables are statics: one grid at a time.
    static std::mutex& one_grid = *new std::mutex;
    const std::lock_guard<std::mutex> lock(one_grid);
    if (Gpu().counts_bytes) BeginTraffic();
    blockDim = block;
    gridDim = grid;
    static Turns turns;
    const bool backwards = turns.Backwards();
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; ++i) {
      const uint64_t b = backwards ? blocks - 1 - i : i;
      blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                  static_cast<unsigned>(b / grid.x / grid.y)};
      TheBlock().Run(static_cast<int>(threads), thread);
    }
    if (Gpu().counts_bytes) EndTraffic();
  };
  return Enqueue(config.stream, run, Work::kKernel);
}

}  // namespace starring::cuda_emulation

void __syncthreads() { starring::cuda_emulation::TheBlock().Sync(); }
void __threadfence_system() {
  // Orders all accesses as atomic_thread_fence does, which ThreadSanitizer does not know.
  static std::atomic<int> fence;
  fence.fetch_add(1);
}
void __nanosleep(unsigned ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }
