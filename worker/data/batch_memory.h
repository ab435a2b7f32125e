// Where a loader's batches are when it is somebody else's memory: that of a device which copies from there.
#ifndef STARRING_WORKER_DATA_BATCH_MEMORY_H_
#define STARRING_WORKER_DATA_BATCH_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace starring {

// What every part of a batch begins at a multiple of, so that vector instructions read it well.
inline constexpr int64_t kBatchAlignmentBytes = 64;

constexpr int64_t RoundUpToBatchAlignment(int64_t size_bytes) {
  return (size_bytes + kBatchAlignmentBytes - 1) / kBatchAlignmentBytes * kBatchAlignmentBytes;
}

// A batch in one piece, as one copy brings it elsewhere: labels, then images or pixels.
struct BatchLayout {
  int64_t values = 0;  // where images or pixels begin
  int64_t size_bytes = 0;
};
constexpr BatchLayout LayOutBatch(int64_t samples_max, int64_t sample_bytes) {
  const int64_t values = RoundUpToBatchAlignment(samples_max * static_cast<int64_t>(sizeof(int32_t)));
  return {.values = values, .size_bytes = values + samples_max * sample_bytes};
}

// Thread safety: one thread, that which creates the loader. The memory that it gave is the loader's to share out.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;  // behind the loader; ends all memory

  // Aligned to kBatchAlignmentBytes; not initialised, or not to be relied on. ResourceExhausted with the number of
  // bytes.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_DATA_BATCH_MEMORY_H_
