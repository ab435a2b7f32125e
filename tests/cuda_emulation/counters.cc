#include "tests/cuda_emulation/counters.h"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace starring::cuda_emulation {
namespace {

constexpr size_t kSectorBytes = 32, kWordSectors = 64;
constexpr size_t kAlignment = 256;
constexpr size_t kRegionBytes = size_t{1} << 36;  // of addresses

std::mutex& CountsMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}
WorkCounts counts;

// Zeroed. The system provides a page when it is touched, so the size may exceed the machine's memory.
void* Reserve(size_t size_bytes) {
  void* const memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// A bit for each sector of the region.
struct Marks {
  uint64_t* words = nullptr;
  std::vector<size_t> touched;  // words that are not 0, of many more that are

  void Mark(size_t sector) {
    uint64_t& word = words[sector / kWordSectors];
    if (word == 0) touched.push_back(sector / kWordSectors);
    word |= uint64_t{1} << sector % kWordSectors;
  }
  int64_t TakeBytes() {
    int64_t sectors = 0;
    for (const size_t word : touched) sectors += std::popcount(std::exchange(words[word], 0));
    touched.clear();
    return sectors * static_cast<int64_t>(kSectorBytes);
  }
};

struct Region {
  uintptr_t begin = 0;
  size_t used_bytes = 0;
  Marks read, written;
} region;

}  // namespace

Marking marking;

WorkCounts TakeCounts() {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  return std::exchange(counts, {});
}

void Count(Work work, int64_t copied_bytes) {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  counts.kernels += work == Work::kKernel ? 1 : 0;
  counts.library_calls += work == Work::kLibrary ? 1 : 0;
  counts.copies += work == Work::kCopy ? 1 : 0;
  counts.memsets += work == Work::kMemset ? 1 : 0;
  counts.memory_operations += work == Work::kMemoryOperation ? 1 : 0;
  counts.copied_bytes += copied_bytes;
}

void CountEvent() {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  ++counts.events;
}

void CountGraphLaunch() {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  ++counts.graph_launches;
}

void CountHostWait() {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  ++counts.host_waits;
}

void AddTraffic(int64_t read_bytes, int64_t written_bytes) {
  const std::lock_guard<std::mutex> lock(CountsMutex());
  counts.read_bytes += read_bytes;
  counts.written_bytes += written_bytes;
}

void* AllocateCounted(size_t size_bytes) {
  if (region.begin == 0) {
    region.begin = reinterpret_cast<uintptr_t>(Reserve(kRegionBytes));
    for (Marks* const marks : {&region.read, &region.written}) {
      marks->words = static_cast<uint64_t*>(Reserve(kRegionBytes / kSectorBytes / 8));
      if (region.begin == 0 || marks->words == nullptr) return nullptr;
    }
  }
  const size_t rounded_bytes = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded_bytes > kRegionBytes - region.used_bytes) return nullptr;
  void* const data = reinterpret_cast<void*>(region.begin + region.used_bytes);
  region.used_bytes += rounded_bytes;
  return data;
}

bool IsCounted(const void* data) { return reinterpret_cast<uintptr_t>(data) - region.begin < region.used_bytes; }

void BeginTraffic() { marking = {.begin = region.begin, .size_bytes = region.used_bytes}; }

void EndTraffic() {
  marking = {};
  AddTraffic(region.read.TakeBytes(), region.written.TakeBytes());
}

void MarkSectors(Access access, size_t offset, size_t size_bytes) {
  Marks& marks = access == Access::kRead ? region.read : region.written;
  for (size_t sector = offset / kSectorBytes; sector <= (offset + size_bytes - 1) / kSectorBytes; ++sector) {
    marks.Mark(sector);
  }
}

}  // namespace starring::cuda_emulation
