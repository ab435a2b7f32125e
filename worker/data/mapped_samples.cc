#include "worker/data/mapped_samples.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/host/machine_limits.h"
#include "worker/data/files/data_memory.h"

namespace starring {
namespace {

// Rounding float64 reads twice the bytes of float32 in each epoch, so memory that is plentiful is used for a copy.
constexpr int64_t kCopiesThatFit = 4;
// Files that take more of the memory that is left may not stay there.
constexpr int64_t kPartThatStays = 2;
// A sample that is in memory is asked for in 2 us, and taken in 60 ns: so nothing is asked after so many batches that
// found all of theirs.
constexpr int kBatchesAsked = 64;

// Whether this thread has waited for the disk lately. A page that was asked for in time does not count.
bool DiskIsSlow() {
  thread_local int64_t seen = 0;
  thread_local int batches_left = 0;
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  if (std::exchange(seen, int64_t{usage.ru_majflt}) != usage.ru_majflt) batches_left = kBatchesAsked;
  batches_left = std::max(0, batches_left - 1);
  return batches_left > 0;
}

bool IsAligned(const MappedSamples::Part& part, int64_t value_bytes) {
  return reinterpret_cast<uintptr_t>(part.file->bytes().data() + part.offset) % static_cast<uintptr_t>(value_bytes) ==
         0;
}

}  // namespace

MappedSamples::MappedSamples(const SampleLayout& layout, std::vector<Part> parts, bool may_leave)
    : layout_(layout), parts_(std::move(parts)), record_bytes_(layout.record_bytes()), may_leave_(may_leave) {
  CHECK(!parts_.empty());
  // Numbers are used where they are only at addresses that a float may have.
  decodes_ = layout.order != ValueOrder::kAsIs;
  for (const Part& part : parts_) {
    CHECK_LE(part.offset + part.count * record_bytes_, std::ssize(part.file->bytes()));
    stored_count_ += part.count;
    decodes_ = decodes_ || !IsAligned(part, layout.value_bytes);
  }
  // With one file a sample's place is a product, without a search.
  if (parts_.size() == 1) single_ = parts_[0].file->bytes().data() + parts_[0].offset + layout.skipped_bytes;
  if (!may_leave_) return;
  for (const Part& part : parts_) part.file->ExpectRandomReads();
}

const MappedSamples::Part& MappedSamples::PartOf(int64_t& sample) const {
  for (const Part& part : parts_) {
    // A set has few files, such as CIFAR-10's five, so the search costs a few comparisons.
    if (sample < part.count) return part;
    sample -= part.count;
  }
  CHECK(false) << "a sample after the last";
  return parts_.back();
}

const uint8_t* MappedSamples::Find(int64_t sample) const {
  const Part& part = PartOf(sample);
  return part.file->bytes().data() + part.offset + sample * record_bytes_ + layout_.skipped_bytes;
}

void MappedSamples::AskAhead(std::span<const int64_t> samples) const {
  if (!may_leave_ || !DiskIsSlow()) return;
  for (const int64_t i : samples) {
    int64_t sample = picked_.empty() ? i : picked_[static_cast<size_t>(i)];
    const Part& part = PartOf(sample);
    part.file->AskAhead(part.offset + sample * record_bytes_ + layout_.skipped_bytes, layout_.stored_bytes());
  }
}

void MappedSamples::Read(int64_t begin, int64_t count, uint8_t* out) const {
  // A mapping with MADV_RANDOM would fetch the file page by page, so a file that may leave memory is read by calls.
  if (!may_leave_) {
    for (int64_t i = 0; i < count; ++i) DecodeSample(layout_, Stored(begin + i), out + i * layout_.sample_bytes());
    return;
  }
  std::vector<uint8_t> records;
  for (int64_t done = 0; done < count;) {
    // Samples that lie one after the other are read together.
    const int64_t first = picked_.empty() ? begin + done : picked_[static_cast<size_t>(begin + done)];
    int64_t sample = first, together = 1;
    const Part& part = PartOf(sample);
    const auto follows = [&](int64_t i) {
      return sample + i < part.count &&
             (picked_.empty() || picked_[static_cast<size_t>(begin + done + i)] == first + i);
    };
    while (done + together < count && follows(together)) ++together;
    uint8_t* const decoded = out + done * layout_.sample_bytes();
    const int64_t offset = part.offset + sample * record_bytes_;
    const auto bytes = static_cast<size_t>(together * record_bytes_);
    if (layout_.order == ValueOrder::kAsIs && layout_.skipped_bytes == 0) {
      part.file->ReadAt(offset, {decoded, bytes});
    } else {
      records.resize(bytes);
      part.file->ReadAt(offset, records);
      for (int64_t i = 0; i < together; ++i) {
        DecodeSample(layout_, records.data() + i * record_bytes_ + layout_.skipped_bytes,
                     decoded + i * layout_.sample_bytes());
      }
    }
    done += together;
  }
}

std::shared_ptr<const MappedSamples> MappedSamples::Pick(std::span<const int64_t> samples) const {
  auto picked = std::make_shared<MappedSamples>(layout_, parts_, may_leave_);
  picked->picked_.reserve(samples.size());
  for (const int64_t i : samples) {
    // The cast is safe: kDatasetImagesMax is 2^32 - 1.
    picked->picked_.push_back(picked_.empty() ? static_cast<uint32_t>(i) : picked_[static_cast<size_t>(i)]);
  }
  return picked;
}

absl::Status MappedSamples::Check() const {
  for (const Part& part : parts_) RETURN_IF_ERROR(part.file->Check());
  return absl::OkStatus();
}

bool MayLeaveMemory(MapData map, int64_t bytes) {
  const absl::StatusOr<int64_t> memory = AvailableMemoryBytes();
  return map == MapData::kAlways || (memory.ok() && bytes > *memory / kPartThatStays);
}

absl::StatusOr<std::shared_ptr<const MappedSamples>> MapSamples(const ByteStream& stream, const SampleLayout& layout,
                                                                int64_t count, MapData map) {
  const std::shared_ptr<const MappedSamples> none;
  const int64_t bytes = count * layout.sample_bytes();
  const bool is_slower = map == MapData::kAuto && layout.order == ValueOrder::kDouble && bytes <= kDatasetBytesMax;
  // Float64 in memory becomes float32 once. Mapped, each epoch converts it again.
  if (map == MapData::kNever || (is_slower && CheckDataFits(stream.path(), kCopiesThatFit * bytes).ok())) return none;
  absl::StatusOr<MappedRest> rest = stream.MapRest();
  // A file that cannot be mapped may still fit into memory.
  if (!rest.ok() && map == MapData::kAuto && bytes <= kDatasetBytesMax) return none;
  RETURN_IF_ERROR(rest.status());
  if (rest->file == nullptr) return none;
  // A file that is too short is refused by the reader.
  if (rest->offset + count * layout.record_bytes() > std::ssize(rest->file->bytes())) return none;
  return std::make_shared<const MappedSamples>(
      layout, std::vector<MappedSamples::Part>{{.file = rest->file, .offset = rest->offset, .count = count}},
      MayLeaveMemory(map, std::ssize(rest->file->bytes())));
}

}  // namespace starring
