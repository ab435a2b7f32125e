// The work of a sink whose functions enqueue it, as on the stream of a GPU.
#ifndef STARRING_TESTS_COMMON_REDUCE_QUEUED_WORK_H_
#define STARRING_TESTS_COMMON_REDUCE_QUEUED_WORK_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/reduce/exclusive_transport.h"

namespace starring {

// Nothing is done before Complete, and copies come last. A test fails where a transport is given memory that work still
// needs.
class QueuedWork {
 public:
  using Memory = std::vector<std::span<const std::byte>>;
  enum class Kind { kCopy, kOther };
  void Enqueue(Kind kind, Memory reads, Memory writes, std::function<void()> work) {
    queue_.push_back({.kind = kind, .reads = std::move(reads), .writes = std::move(writes), .work = std::move(work)});
  }
  void Complete() {
    std::vector<Work> all = std::exchange(queue_, {});
    std::stable_partition(all.begin(), all.end(), [](const Work& one) { return one.kind != Kind::kCopy; });
    for (const Work& one : all) one.work();
  }
  bool is_empty() const { return queue_.empty(); }

  // For ExclusiveTransport.
  void ExpectMayPost(const ExclusiveTransport::Posted& posted) const {
    for (const Work& one : queue_) {
      EXPECT_FALSE(Overlaps(one.writes, posted.data))
          << (posted.receives ? "a receive" : "a send") << " came too early";
      EXPECT_FALSE(posted.receives && Overlaps(one.reads, posted.data)) << "what is received into is still read";
    }
  }

 private:
  struct Work {
    Kind kind = Kind::kOther;
    Memory reads, writes;
    std::function<void()> work;
  };
  static bool Overlaps(const Memory& memory, std::span<const std::byte> data) {
    for (const std::span<const std::byte> one : memory) {
      if (one.data() < data.data() + data.size() && data.data() < one.data() + one.size()) return true;
    }
    return false;
  }

  std::vector<Work> queue_;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_REDUCE_QUEUED_WORK_H_
