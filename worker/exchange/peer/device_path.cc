#include "worker/exchange/peer/device_path.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/status.h"

namespace starring {
namespace {

// A chunk, and one element more: messages that begin between two 16-byte boundaries are moved too.
constexpr int64_t kTestElements = kChunkElements + 1;
constexpr ElementRange kMessages[] = {{1, 3}, {3, kTestElements}};

// Every rank leaves with what all can.
absl::StatusOr<DevicePath> Agree(MessagePump& pump, DevicePath mine, const CollectiveOptions& options) {
  std::vector<DevicePath> all(pump.rank() == 0 ? static_cast<size_t>(pump.world_size()) : 0);
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kDevicePath, std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)), options));
  const bool can_all = std::all_of(all.begin(), all.end(), [](DevicePath p) { return p == DevicePath::kStraight; });
  DevicePath verdict = can_all ? DevicePath::kStraight : DevicePath::kByHost;
  RETURN_IF_ERROR(SendFromRoot(pump, ControlTag::kDevicePath, std::as_writable_bytes(std::span(&verdict, 1)), options));
  return verdict;
}

// Integers, so that sums of two are exact; each rank's own.
std::vector<float> PatternOf(int rank) {
  std::vector<float> pattern(static_cast<size_t>(kTestElements));
  for (size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<float>((i * 31 + static_cast<size_t>(rank) * 977) % 65521);
  }
  return pattern;
}

// Device memory of kTestElements each.
struct Buffers {
  std::span<float> from, to;
};

absl::Status SendRight(MessagePump& pump, const Buffers& memory, const CollectiveOptions& options) {
  const int right = (pump.rank() + 1) % pump.world_size();
  const int left = (pump.rank() + pump.world_size() - 1) % pump.world_size();
  std::vector<MessagePump::Token> tokens;
  for (const ElementRange& message : kMessages) {
    const auto begin = static_cast<size_t>(message.begin), size = static_cast<size_t>(message.size());
    tokens.push_back(
        pump.ReceiveInto(left, ControlTag::kDevicePathData, std::as_writable_bytes(memory.to.subspan(begin, size))));
    tokens.push_back(
        pump.SendFrom(right, ControlTag::kDevicePathData, std::as_bytes(memory.from.subspan(begin, size))));
  }
  const auto done = [&] {
    return std::all_of(tokens.begin(), tokens.end(), [&](MessagePump::Token token) { return pump.IsComplete(token); });
  };
  return pump.PumpUntil(done, DeadlineAfter(options.deadline), options.what);
}

// Of this rank: what its left neighbour sent has arrived, and its own kernels see it.
absl::StatusOr<DevicePath> Test(MessagePump& pump, CudaSliceOwner& owner, const Buffers& memory,
                                const CollectiveOptions& options) {
  const std::vector<float> mine = PatternOf(pump.rank());
  const std::vector<float> lefts = PatternOf((pump.rank() + pump.world_size() - 1) % pump.world_size());
  std::vector<float> got(mine.size(), std::numeric_limits<float>::quiet_NaN());
  owner.CopyToDevice(mine, memory.from);
  owner.CopyToDevice(got, memory.to);
  RETURN_IF_ERROR(SendRight(pump, memory, options));
  owner.Add(memory.from, memory.to);
  owner.CopyToHost(memory.to, got);
  RETURN_IF_ERROR(owner.status());
  for (size_t i = 1; i < got.size(); ++i) {
    if (got[i] != mine[i] + lefts[i]) return DevicePath::kByHost;
  }
  return DevicePath::kStraight;
}

}  // namespace

absl::StatusOr<DevicePath> ChooseDevicePath(MessagePump& pump, CudaSliceOwner* owner,
                                            const CollectiveOptions& options) {
  DevicePath claim = DevicePath::kByHost;
  Buffers memory;
  if (owner != nullptr && pump.transport().moves_device_memory()) {
    memory = {.from = owner->Allocate(kTestElements), .to = owner->Allocate(kTestElements)};
    if (owner->status().ok()) claim = DevicePath::kStraight;
  }
  ASSIGN_OR_RETURN(const DevicePath claimed, Agree(pump, claim, options));
  if (claimed == DevicePath::kByHost) return claimed;
  const absl::StatusOr<DevicePath> tested = Test(pump, *owner, memory, options);
  if (!tested.ok()) {
    const absl::Status why(tested.status().code(),
                           absl::StrCat("the self-test of CUDA-aware MPI: ", std::string(tested.status().message()),
                                        ": start the job with --cuda_aware_mpi=off"));
    pump.Abort(why);
    return why;
  }
  return Agree(pump, *tested, options);
}

}  // namespace starring
