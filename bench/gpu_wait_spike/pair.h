// Two processes that do one part of an experiment together, under a parent that ends them.
//
// RunPair forks both, so the caller must have no threads and must not have used CUDA. The two share SharedPages. At the
// deadline the parent writes the abort word, for which waiting kernels look, and kills a process that is still there
// two seconds later. A process dies with its parent.
//
// Thread safety: none; each process is single-threaded.
#ifndef STARRING_BENCH_GPU_WAIT_SPIKE_PAIR_H_
#define STARRING_BENCH_GPU_WAIT_SPIKE_PAIR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring::gpu_wait {

inline constexpr int kSeriesMax = 2;      // series of samples that a part may leave
inline constexpr int kSamplesMax = 2048;  // of each series
inline constexpr int kMessageBytesMax = 128;
inline constexpr int kTextBytesMax = 4096;

// The words of the board, each in a cache line of its own.
enum class BoardWord { kAbort, kAwaitedBy0, kAwaitedBy1, kGate };

// The results that one process leaves for the parent. Only that process writes them.
struct Report {
  int32_t code = 0;                       // an absl::StatusCode
  std::array<char, kTextBytesMax> error;  // its message
  std::array<char, kTextBytesMax> notes;  // lines
  std::array<int32_t, kSeriesMax> counts;
  std::array<std::array<double, kSamplesMax>, kSeriesMax> samples;
};

struct SharedPages {
  // A page of its own, because processes register it with CUDA.
  struct alignas(4096) Board {
    std::array<uint64_t, 512> words;
  } board;
  struct alignas(64) Arrival {
    std::atomic<uint64_t> count;  // calls of Meet; the largest number once the process has ended
    std::atomic<bool> failed;
    std::array<char, kMessageBytesMax> message;
  };
  std::array<Arrival, 2> arrivals;
  std::array<Report, 2> reports;
};

// One of the two processes, as its part sees it.
class Peer {
 public:
  // REQUIRES: index is 0 or 1; `pages` outlives the peer.
  Peer(int index, SharedPages* pages) : index_(index), pages_(pages) {}

  int index() const { return index_; }
  SharedPages& pages() { return *pages_; }
  std::atomic_ref<uint64_t> word(BoardWord which) {
    return std::atomic_ref<uint64_t>(pages_->board.words[static_cast<size_t>(which) * 8]);
  }

  // Returns when both processes have called it as often. Fails with Aborted if the other process has failed or ended,
  // or if the parent wants the end.
  absl::Status Meet();

  // OK while the other process lives, has not failed, and the parent does not want the end: for loops that wait.
  absl::Status StillWanted();

  // Tells the other process `mine` and returns its value: a Meet before which both have written.
  template <typename T>
  absl::StatusOr<T> Swap(const T& mine);

  void Note(absl::string_view line);
  // REQUIRES: series < kSeriesMax. Drops what exceeds kSamplesMax.
  void AddSample(int series, double value);

 private:
  const int index_;
  SharedPages* const pages_;
  uint64_t meetings_ = 0;
};

struct PairResult {
  absl::Status status;  // of the process that failed first: its code, its message
  std::vector<std::string> notes;
  std::array<std::vector<double>, kSeriesMax> series;  // of process 0
};

using Part = std::function<absl::Status(Peer&)>;

// Runs `part` in two processes. Both have ended when it returns, unless the kernel refuses to end one, which the status
// then says.
PairResult RunPair(const Part& part, std::chrono::milliseconds deadline);

// Implementation.

template <typename T>
absl::StatusOr<T> Peer::Swap(const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMessageBytesMax);
  std::memcpy(pages_->arrivals[static_cast<size_t>(index_)].message.data(), &mine, sizeof(T));
  if (absl::Status met = Meet(); !met.ok()) return met;
  T theirs;
  std::memcpy(&theirs, pages_->arrivals[static_cast<size_t>(1 - index_)].message.data(), sizeof(T));
  // Neither writes its next message before the other has read this one.
  if (absl::Status met = Meet(); !met.ok()) return met;
  return theirs;
}

}  // namespace starring::gpu_wait

#endif  // STARRING_BENCH_GPU_WAIT_SPIKE_PAIR_H_
