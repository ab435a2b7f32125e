// The values of samples where they lie in a file, and as a data set has them.
//
// Thread safety: any thread, unless it says otherwise.
#ifndef STARRING_WORKER_DATA_MAPPED_SAMPLES_H_
#define STARRING_WORKER_DATA_MAPPED_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/files/byte_stream.h"
#include "worker/data/files/mapped_file.h"
#include "worker/data/files/sample_layout.h"

namespace starring {

// Whether files that are not compressed are mapped, or read into memory. kAuto: they are mapped, unless the system does
// not grant that and they fit into memory; float64 only if a copy would take more than a quarter of the memory that is
// left. kAlways: they are mapped, and not expected to stay in memory.
enum class MapData { kAuto, kNever, kAlways };

// Samples in mapped files.
class MappedSamples {
 public:
  // Samples that follow each other in one file.
  struct Part {
    std::shared_ptr<const MappedFile> file;
    int64_t offset = 0;  // of the first record
    int64_t count = 0;
  };

  // `may_leave`: the files may not stay in memory. REQUIRES: one part or more; the files have all records.
  MappedSamples(const SampleLayout& layout, std::vector<Part> parts, bool may_leave);

  int64_t count() const { return picked_.empty() ? stored_count_ : static_cast<int64_t>(picked_.size()); }
  // Sample needs `scratch`.
  bool decodes() const { return decodes_; }
  const SampleLayout& layout() const { return layout_; }

  // The values of sample `i`: in the file, or decoded into `scratch`, which has room for them. They are zeros where the
  // file was cut, which Check tells afterwards.
  const uint8_t* Sample(int64_t i, uint8_t* scratch) const {
    const uint8_t* const stored = Stored(i);
    if (!decodes_) return stored;
    DecodeSample(layout_, stored, scratch);
    return scratch;
  }
  // Where the file has them.
  const uint8_t* Stored(int64_t i) const {
    const int64_t sample = picked_.empty() ? i : picked_[static_cast<size_t>(i)];
    return single_ != nullptr ? single_ + sample * record_bytes_ : Find(sample);
  }

  // Starts to read samples from the disk, if reads of this thread have lately waited for it.
  void AskAhead(std::span<const int64_t> samples) const;
  // Writes the values of the samples [begin, begin + count) to `out`, one after the other: for a pass over all of them.
  void Read(int64_t begin, int64_t count, uint8_t* out) const;

  // The samples with these numbers, in this order.
  std::shared_ptr<const MappedSamples> Pick(std::span<const int64_t> samples) const;

  absl::Status Check() const;  // as that of MappedFile, for each file

 private:
  const uint8_t* Find(int64_t sample) const;
  const Part& PartOf(int64_t& sample) const;

  const SampleLayout layout_;
  const std::vector<Part> parts_;
  const int64_t record_bytes_;
  int64_t stored_count_ = 0;
  bool decodes_ = false;
  const bool may_leave_;
  const uint8_t* single_ = nullptr;  // the first sample's values, if there is one part
  std::vector<uint32_t> picked_;     // numbers of samples in the files; empty: all
};

// Whether files of so many bytes may not stay in memory.
bool MayLeaveMemory(MapData map, int64_t bytes);

// The samples of `stream` from its next byte on, mapped if `map` says so; null if they are to be read into memory.
absl::StatusOr<std::shared_ptr<const MappedSamples>> MapSamples(const ByteStream& stream, const SampleLayout& layout,
                                                                int64_t count, MapData map);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_MAPPED_SAMPLES_H_
