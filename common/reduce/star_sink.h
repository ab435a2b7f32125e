// The side of a star (star.h) that knows arrays: it has the contributions and results of one process, and carries out
// the operations on their elements. Star and Owner decide what is added when; they touch no element.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_REDUCE_STAR_SINK_H_
#define STARRING_COMMON_REDUCE_STAR_SINK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/base/copy_array.h"
#include "common/base/element_range.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"

namespace starring {

// One sum, as every process submits it.
struct StarSum {
  // The sink's name for it. It may be the number of an earlier sum that is ready. Also its turn, as OwnerMap::Sum says.
  int64_t number = 0;
  ElementRange elements;
  OwnerMap owners;
  int64_t element_bytes = sizeof(float);  // of contributions and results
  // Sums with different keys have different tags, as far as there are tags. So messages of sums on which processes
  // disagree are not taken for each other.
  uint64_t tag_key = 0;
  TraceLabels labels;
};

// All calls but Allocate come from Star's own methods. A sink overrides those that its star needs.
//
// Add, FinishParts, FinishAll and Copy may only enqueue their work, as on the stream of a GPU. Later work sees what
// earlier work has written. Copies may be put off until Complete, in their order. Until then no other work uses the
// memory where they write, or writes where they read. The star calls Complete before it sends bytes that work writes,
// before it receives into memory that work uses, and before OnReady.
//
// REQUIRES: a sink that enqueues is not given to a star with shared memory, into which the star copies at once.
class StarSink {
 public:
  // Memory where the sink computes: in host memory, or a GPU's. It begins at a cache line, and lasts as long as the
  // sink. Not needed by a star that is given its memory.
  virtual std::span<std::byte> Allocate(int64_t /*bytes*/) { return Unexpected<std::span<std::byte>>(); }

  // Where a worker has its elements of `range`, which may be sent from there; it has one array for each of its nodes.
  virtual std::span<const std::byte> Contribution(const StarSum& /*sum*/, int /*node*/, ElementRange /*range*/) {
    return Unexpected<std::span<const std::byte>>();
  }
  // Where a worker, or a server that keeps results itself, has the result of `range`.
  virtual std::span<std::byte> Result(const StarSum& /*sum*/, ElementRange /*range*/) {
    return Unexpected<std::span<std::byte>>();
  }

  // `contribution` of contributor `contributor` is in an owner's memory, with the plan kAll, as long as its message.
  // FinishAll follows when all are there.
  virtual void OnContribution(const StarSum& /*sum*/, int /*contributor*/,
                              std::span<const std::byte> /*contribution*/) {}

  // The operations of an owner. Add and FinishParts are for the plans kChain and kTree (order.h), FinishAll is for
  // kAll.
  //
  // into += from.
  virtual void Add(const StarSum& /*sum*/, std::span<const std::byte> /*from*/, std::span<std::byte> /*into*/) {
    Unexpected<void>();
  }
  // Two parts of all contributions to `range`, which are not added yet.
  struct Parts {
    std::span<std::byte> part;  // may be overwritten
    std::span<const std::byte> other;
  };
  // The last step of a sum makes two outputs.
  struct Output {
    ElementRange range;
    // The owner keeps the record: at the sink's place (Result), or in the owner's memory if the sink has none.
    std::span<std::byte> record;
    // The workers get the answer. Empty: the record is the answer.
    std::span<std::byte> answer;
    int piece = 0;  // for Star::OnFinished
  };
  // kLater: the sink calls Star::OnFinished when both outputs are complete, not before this call has returned. Until
  // then it may read the contributions.
  enum class Finished { kNow, kLater };
  virtual Finished FinishParts(const StarSum& /*sum*/, const Output& /*output*/, const Parts& /*parts*/) {
    return Unexpected<Finished>();
  }
  // The same for all contributions to the range, in the order of contributors. The worker's own must not be
  // overwritten, unless the record is at its place.
  virtual Finished FinishAll(const StarSum& /*sum*/, const Output& /*output*/,
                             std::span<std::byte* const> /*contributions*/) {
    return Unexpected<Finished>();
  }

  // The first bytes of `to` become those of `from`: a message's ranges are packed and unpacked so. REQUIRES: `to` is
  // not shorter, and they do not overlap.
  virtual void Copy(std::span<const std::byte> from, std::span<std::byte> to) { CopyArray(from, to); }
  // Waits until all enqueued work has ended. A sink that enqueues nothing has nothing to do here.
  virtual void Complete() {}

  // An operation of the star is complete.
  virtual void OnProgress() {}
  // The contribution may be overwritten, and the result is complete. At a process that does not contribute: its slice
  // is complete.
  virtual void OnReady(const StarSum& /*sum*/) {}
  // Nothing of the sum is in flight any more; comes after OnReady. The star does not touch the sum again.
  virtual void OnDone(const StarSum& /*sum*/) {}

 protected:
  ~StarSink() = default;

  // Makes an answer with the values of the record.
  void CopyToAnswer(const Output& output) {
    if (!output.answer.empty()) Copy(output.record, output.answer);
  }

 private:
  template <typename T>
  static T Unexpected() {
    CHECK(false) << "this sink's star needs no such operation";
    return T();
  }
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_STAR_SINK_H_
