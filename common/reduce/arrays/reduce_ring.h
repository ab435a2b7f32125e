// The ring (ring.h) for reductions: contributions and results are elements of a rank's array.
#ifndef STARRING_COMMON_REDUCE_ARRAYS_REDUCE_RING_H_
#define STARRING_COMMON_REDUCE_ARRAYS_REDUCE_RING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/element_range.h"
#include "common/base/memory.h"
#include "common/reduce/arrays/reduce_machine.h"
#include "common/reduce/arrays/reduction.h"
#include "common/reduce/ring.h"
#include "common/reduce/ring_memory.h"

namespace starring {

class ReduceRing final : public ReduceMachine, private RingSink {
 public:
  struct Options {
    Transport* transport = nullptr;
    // As Ring::Options.
    std::optional<RingMemory> own;
    std::optional<RingMemory> right;
  };
  // REQUIRES: the objects to which the options refer outlive the machine.
  explicit ReduceRing(const Options& options);

 private:
  void Start(const Reduction& reduction) override;
  void Advance(uint64_t operation) override;

  std::span<float> Allocate(int64_t count) override { return allocated_.emplace_back(count).span(); }
  std::span<const float> Contribution(const RingSum& sum, ElementRange range) override;
  void CopyContribution(const RingSum& sum, ElementRange range, std::span<float> out) override;
  void Add(const RingSum& sum, ElementRange range, std::span<float> partial) override;
  void Finish(const RingSum& sum, ElementRange range, std::span<float> partial) override;
  std::span<std::byte> Result(const RingSum& sum, ElementRange range) override;
  void OnProgress() override { NoteProgress(); }
  void OnReady(const RingSum& /*sum*/) override {}
  void OnDone(const RingSum& sum) override;

  std::vector<AlignedFloats> allocated_;
  std::optional<Ring> ring_;  // none with one rank
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_ARRAYS_REDUCE_RING_H_
