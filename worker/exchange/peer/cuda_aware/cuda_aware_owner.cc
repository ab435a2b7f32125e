#include "worker/exchange/peer/cuda_aware/cuda_aware_owner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/status.h"
#include "worker/exchange/peer/cuda_aware/cuda_slice_owner.h"

namespace starring {
namespace {

// The path that a rank can use. Ranks send it to rank 0, which sends back the path for all.
enum class Path : int { kHost, kDevice };

// Two messages that begin between two 16-byte boundaries: a chunk's, and a small one.
constexpr ElementRange kShortMessages[] = {{1, 3}, {3, kChunkElementsMax + 1}};
// Libraries send long messages in another way than short ones: in fragments, or straight from GPU to GPU. The limit
// keeps the test short and its memory small: each pair of ranks exchanges such messages.
constexpr int64_t kLongMessageElementsMax = 4 << 20;

// The self-test's messages, in memory of one array.
std::vector<ElementRange> MessagesOf(const CudaAwareOptions& aware) {
  std::vector<ElementRange> messages(std::begin(kShortMessages), std::end(kShortMessages));
  const int64_t begin = messages.back().end;
  if (aware.message_elements > kChunkElementsMax) {
    messages.push_back({begin, begin + std::min(aware.message_elements, kLongMessageElementsMax)});
  }
  return messages;
}

// The GPU has nothing to do while messages are moved, or kernels run; and the memory of the second round is what the
// first one has freed, as far as the driver allows.
enum class Round { kIdle, kBusy };
constexpr int kKernelsOfBusyRound = 64;

// Returns kDevice on every rank if `mine` is kDevice on every rank.
absl::StatusOr<Path> Agree(MessagePump& pump, Path mine, const CollectiveOptions& options) {
  std::vector<Path> all(pump.rank() == 0 ? static_cast<size_t>(pump.world_size()) : 0);
  // Each rank's answer goes to rank 0, and the verdict comes back. Both may have one tag: they travel in opposite
  // directions.
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kCudaAware, std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)), options));
  const bool can_all = std::all_of(all.begin(), all.end(), [](Path p) { return p == Path::kDevice; });
  Path verdict = can_all ? Path::kDevice : Path::kHost;
  RETURN_IF_ERROR(SendFromRoot(pump, ControlTag::kCudaAware, std::as_writable_bytes(std::span(&verdict, 1)), options));
  return verdict;
}

// Each rank's own. Integers, so that the sum of two patterns is exact.
std::vector<float> PatternOf(int rank, size_t count) {
  std::vector<float> pattern(count);
  for (size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<float>((i * 31 + static_cast<size_t>(rank) * 977) % 65521);
  }
  return pattern;
}

// Device memory for all messages, once where they are sent and once where they arrive.
struct Buffers {
  static absl::StatusOr<Buffers> Allocate(CudaDevice& device, std::vector<ElementRange> messages);

  size_t count() const { return static_cast<size_t>(messages.back().end); }
  std::span<float> from() const { return {memory[0]->floats(), count()}; }
  std::span<float> to() const { return {memory[1]->floats(), count()}; }

  std::vector<ElementRange> messages;
  std::unique_ptr<DeviceBuffer> memory[2];
};

absl::StatusOr<Buffers> Buffers::Allocate(CudaDevice& device, std::vector<ElementRange> messages) {
  Buffers buffers;
  buffers.messages = std::move(messages);
  for (std::unique_ptr<DeviceBuffer>& memory : buffers.memory) {
    ASSIGN_OR_RETURN(memory, device.Allocate(buffers.messages.back().end * static_cast<int64_t>(sizeof(float))));
  }
  return buffers;
}

int Left(const MessagePump& pump, int distance) {
  return (pump.rank() + pump.world_size() - distance) % pump.world_size();
}

// Sends `from` to the rank `distance` places to the right, and receives in `to` from the one to the left. As in ring
// and star, all operations are posted before the first wait, receives before sends.
absl::Status SendRight(MessagePump& pump, int distance, const Buffers& memory, const CollectiveOptions& options) {
  const int right = (pump.rank() + distance) % pump.world_size();
  const int left = Left(pump, distance);
  std::vector<MessagePump::Token> tokens;
  for (const ElementRange& message : memory.messages) {
    const auto begin = static_cast<size_t>(message.begin), size = static_cast<size_t>(message.size());
    tokens.push_back(
        pump.ReceiveInto(left, ControlTag::kCudaAwareData, std::as_writable_bytes(memory.to().subspan(begin, size))));
    tokens.push_back(
        pump.SendFrom(right, ControlTag::kCudaAwareData, std::as_bytes(memory.from().subspan(begin, size))));
  }
  const auto done = [&] {
    return std::all_of(tokens.begin(), tokens.end(), [&](MessagePump::Token token) { return pump.IsComplete(token); });
  };
  const absl::Status status = pump.PumpUntil(done, DeadlineAfter(options.deadline), options.what);
  // Without a message it is this wait that was too long, and the ranks for which it waited are named.
  if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
  ASSIGN_OR_RETURN(const std::string missing, pump.FindMissing());
  return absl::DeadlineExceededError(absl::StrCat("messages of GPU memory did not arrive within ",
                                                  absl::FormatDuration(options.deadline), ": ", missing));
}

// kDevice if the pattern of the rank `distance` places to the left has arrived and a kernel of this rank sees it. NaNs
// are in the buffer before: a kernel that reads too early finds them.
absl::StatusOr<Path> TestPair(MessagePump& pump, int distance, Round round, CudaSliceOwner& owner,
                              const Buffers& memory, const CollectiveOptions& options) {
  const std::vector<float> mine = PatternOf(pump.rank(), memory.count());
  const std::vector<float> lefts = PatternOf(Left(pump, distance), memory.count());
  std::vector<float> got(mine.size(), std::numeric_limits<float>::quiet_NaN());
  // The order is the test. The copies have ended before the first message leaves, and the kernel starts as soon as MPI
  // says that the message is here: a library that completes a receive before its data are visible to the GPU is found
  // out.
  owner.CopyToDevice(mine, memory.from());
  owner.CopyToDevice(got, memory.to());
  if (round == Round::kBusy) owner.QueueKernels(kKernelsOfBusyRound);
  RETURN_IF_ERROR(SendRight(pump, distance, memory, options));
  owner.Add(memory.from(), memory.to());
  owner.CopyToHost(memory.to(), got);
  RETURN_IF_ERROR(owner.status());
  // Element 0 is not sent: it only moves the messages off a 16-byte boundary.
  for (size_t i = 1; i < got.size(); ++i) {
    if (got[i] != mine[i] + lefts[i]) return Path::kHost;
  }
  return Path::kDevice;
}

// A rank whose test has failed goes on with the other pairs, because they wait for its messages.
absl::StatusOr<Path> Test(MessagePump& pump, CudaAwarePairs pairs, Round round, CudaSliceOwner& owner,
                          const Buffers& memory, const CollectiveOptions& options) {
  const int distance_max = pairs == CudaAwarePairs::kNeighbours ? 1 : std::max(1, pump.world_size() - 1);
  Path path = Path::kDevice;
  for (int distance = 1; distance <= distance_max; ++distance) {
    ASSIGN_OR_RETURN(const Path of_pair, TestPair(pump, distance, round, owner, memory, options));
    if (of_pair == Path::kHost) path = Path::kHost;
  }
  return path;
}

}  // namespace

absl::Status CreateCudaAwareOwner(MessagePump& pump, CudaDevice* device, const OwnedSlices::Options& options,
                                  const CudaAwareOptions& aware, const CollectiveOptions& collective,
                                  std::unique_ptr<SliceOwner>& owner) {
  owner = nullptr;
  std::unique_ptr<CudaSliceOwner> candidate;
  if (device != nullptr) {
    auto created = CudaSliceOwner::Create(device, options, aware.reserved_elements);
    // Too little GPU memory is no error: messages then go by way of host memory.
    if (created.ok()) candidate = *std::move(created);
  }
  // Without the library's claim nothing is posted, if it is needed: device memory would make it crash.
  const bool may_try = aware.mpi != nullptr && (aware.without_claim || aware.mpi->moves_device_memory());
  Path path = candidate != nullptr && may_try ? Path::kDevice : Path::kHost;
  Buffers memory;
  for (const Round round : {Round::kIdle, Round::kBusy}) {
    memory = {};
    if (path == Path::kDevice) {
      auto allocated = Buffers::Allocate(*device, MessagesOf(aware));
      if (allocated.ok()) {
        memory = *std::move(allocated);
      } else {
        path = Path::kHost;
      }
    }
    // The ranks agree before a test as well: a rank that cannot take part would leave its neighbours waiting.
    ASSIGN_OR_RETURN(const Path agreed, Agree(pump, path, collective));
    if (agreed == Path::kHost) return absl::OkStatus();
    const absl::StatusOr<Path> tested = Test(pump, aware.pairs, round, *candidate, memory, collective);
    // This is an error, not a wrong value. Operations on device memory may be in flight, so the exchange cannot go on
    // by way of host memory on this transport.
    if (!tested.ok()) {
      const absl::Status why(tested.status().code(),
                             absl::StrCat("the self-test of CUDA-aware MPI: ", std::string(tested.status().message()),
                                          ": start the job with --cuda_aware_mpi=off"));
      pump.Abort(why);
      // A message may still arrive in this memory.
      for (std::unique_ptr<DeviceBuffer>& buffer : memory.memory) candidate->Keep(std::move(buffer));
      owner = std::move(candidate);
      return why;
    }
    path = *tested;
  }
  // A library may work between two ranks and not between two others, for instance across hosts.
  ASSIGN_OR_RETURN(const Path agreed, Agree(pump, path, collective));
  if (agreed == Path::kDevice) owner = std::move(candidate);
  return absl::OkStatus();
}

}  // namespace starring
