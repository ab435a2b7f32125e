#include "common/transport/memory/host_arrays.h"

#include "absl/strings/str_cat.h"
#include "common/job/leaf_shares.h"
#include "common/reduce/owner_map.h"

namespace starring {
namespace {

// Raise the version with every change after which two builds would misunderstand each other's arrays.
constexpr int kArraysVersion = 2;

// Each array begins on a page.
constexpr int64_t kPageElements = 4096 / sizeof(float);
int64_t ArrayElements(const HostArraysShape& shape) {
  return (shape.element_count + kPageElements - 1) / kPageElements * kPageElements;
}

std::vector<int> LeafOwners(const HostArraysShape& shape) {
  return DealLeavesEvenly(shape.micro_batches, shape.worker_count);
}

int64_t ArrayCount(const HostArraysShape& shape, int rank) {
  return rank < shape.worker_count ? std::ssize(ShareOf(rank, LeafOwners(shape))) : 0;
}

std::span<float> Floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<const float> Floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

HostMemory::Options HostArraysMemory(const HostArraysShape& shape) {
  return {.bytes =
              [shape](int rank) {
                const int64_t arrays = ArrayCount(shape, rank) + (rank == 0 ? 1 : 0);
                return arrays * ArrayElements(shape) * static_cast<int64_t>(sizeof(float));
              },
          .bucket_count = shape.bucket_count,
          // A process reads the gradients of the others and writes its own. Rank 0's piece, which has the parameters,
          // is writable to all.
          .access = SealedMemory::Access::kRead,
          .layout = absl::StrCat(kArraysVersion, "/", OwnerMap::kSliceBytesMin)};
}

HostArrays DivideHostMemory(const HostArraysShape& shape, int rank, HostMemory& memory) {
  const int64_t array = ArrayElements(shape);
  HostArrays arrays;
  for (const Contributor& one : ContributorsOf(LeafOwners(shape))) {
    arrays.gradients.push_back(Floats(memory.piece(one.rank)).subspan(one.node * array, shape.element_count));
  }
  for (int64_t node = 0; node < ArrayCount(shape, rank); ++node) {
    arrays.own_gradients.push_back(Floats(memory.writable_piece(rank)).subspan(node * array, shape.element_count));
  }
  // After the gradients of rank 0.
  arrays.parameters = Floats(memory.writable_piece(0)).subspan(ArrayCount(shape, 0) * array, shape.element_count);
  return arrays;
}

}  // namespace starring
