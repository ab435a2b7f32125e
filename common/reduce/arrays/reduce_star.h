// The star (star.h) for reductions: contributions and results are elements of a rank's array. The ranks are the owners,
// or servers are (sum_server.h).
#ifndef STARRING_COMMON_REDUCE_ARRAYS_REDUCE_STAR_H_
#define STARRING_COMMON_REDUCE_ARRAYS_REDUCE_STAR_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/element_range.h"
#include "common/reduce/arrays/reduce_machine.h"
#include "common/reduce/arrays/reduction.h"
#include "common/reduce/star.h"
#include "common/reduce/star_memory.h"
#include "common/reduce/star_sink.h"

namespace starring {

// The bytes of a message: so many that its bytes cost more than the message; with many ranks fewer, because an owner
// holds contributions of all of them.
constexpr int64_t ReduceStarMessageBytes(int worker_count) {
  const int64_t fair_share = (int64_t{4} << 20) / worker_count;
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fair_share))), 16 << 10,
                             256 << 10);
}

// Pieces that a rank has on their way to one owner: one travels there, one is added, one travels back, and one follows.
inline constexpr int kReduceStarSlots = 4;

// An owner's memory.
constexpr int64_t ReduceStarMemoryBytes(int worker_count) {
  return kReduceStarSlots * StarMemory::SlotBytes(worker_count, ReduceStarMessageBytes(worker_count));
}

// A process's part in the star, for the first `worker_count` ranks of the transport's world.
struct ReduceStarOptions {
  Transport* transport = nullptr;
  int server_count = 0;  // 0: the ranks are the owners
  // Where this process adds, ReduceStarMemoryBytes. REQUIRES: not empty at an owner.
  std::span<std::byte> memory;
  // The memory of each owner, mapped by this process; an owner's own is `memory`. Empty: messages have the elements.
  std::vector<std::span<std::byte>> shared;
  bool is_shared = false;  // the others have mapped this owner's memory
};
Star::Options StarOptionsOf(const ReduceStarOptions& options, StarSink* sink);
StarSum StarSumOf(const Reduction& reduction, int owner_count);

class ReduceStar final : public ReduceMachine, private StarSink {
 public:
  // REQUIRES: the objects to which the options refer outlive the machine.
  explicit ReduceStar(const ReduceStarOptions& options);

 private:
  void Start(const Reduction& reduction) override;
  void Advance(uint64_t operation) override;

  std::span<const std::byte> Contribution(const StarSum& sum, int node, ElementRange range) override;
  std::span<std::byte> Result(const StarSum& sum, ElementRange range) override;
  Finished FinishAll(const StarSum& sum, const Output& output, std::span<std::byte* const> contributions) override;
  void OnProgress() override { NoteProgress(); }
  void OnDone(const StarSum& sum) override { ReduceMachine::Complete(sum.number); }

  const int owner_count_;
  std::optional<Star> star_;  // none in a world of one
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_REDUCE_STAR_H_
