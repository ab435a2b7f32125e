// The part of NCCL that worker/exchange/peer/nccl uses, between processes of one host with emulated GPUs, whose memory
// is the host's. A test puts the folder of this libnccl.so.2 into LD_LIBRARY_PATH.
//
// As NCCL, it waits for all ranks for ever. A call is in progress until a thread of the stub has put its work on the
// stream, whose turn it then waits for: so a host that does not wait for the stream reads what was there before. It is
// as strict as the documentation: a call while another is in progress is refused.
//
// The ranks share a segment of POSIX memory, which the id names: for each rank a count and a place for a part of its
// contribution. A sum is a tree over the ranks: ((0 + 1) + (2 + 3)) + ..., the same on all.
//
// The environment: NCCL_STUB_VERSION=23000 is the release.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

// A function of the emulation in the program that has opened this library (tests/cuda_emulation/runtime.cc). Null in a
// program without emulated GPUs, which only looks at the functions.
extern "C" __attribute__((weak)) int StarringEnqueueOnEmulatedStream(void* stream, std::function<bool()> is_ready,
                                                                     std::function<void()> run);

namespace {

// NCCL's numbers, as worker/exchange/peer/nccl/nccl_library.h has them; written here again, so that a wrong one
// there is found.
constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7;
constexpr int kFloat32 = 7, kSum = 0;
constexpr unsigned kConfigMagic = 0xcafebeef;

constexpr int kRanksMax = 8;
constexpr size_t kPartFloats = 1 << 14;

struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

struct Segment {
  std::atomic<int32_t> joined_count;
  std::atomic<int64_t> written[kRanksMax], read[kRanksMax];  // parts, by rank
  float parts[kRanksMax][kPartFloats];
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

std::string& LastError() {
  static std::string& text = *new std::string;
  return text;
}

int Refuse(int result, const char* why) {
  LastError() = why;
  return result;
}

// Pairs of neighbours, and then of the sums of pairs.
float TreeSum(const Segment& segment, size_t i, int begin, int end) {
  if (end - begin == 1) return segment.parts[begin][i];
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  return TreeSum(segment, i, begin, begin + half) + TreeSum(segment, i, begin + half, end);
}

// Work on a stream has a share in it, and may be there when the communicator has gone.
struct Ranks {
  Ranks(Segment* its_segment, int its_rank, int its_rank_count)
      : segment(its_segment), rank(its_rank), rank_count(its_rank_count) {}
  ~Ranks() { munmap(segment, sizeof(Segment)); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  bool All(const std::atomic<int64_t>* counts, int64_t part_count) const {
    const auto has = [part_count](const auto& count) { return count >= part_count; };
    return aborted || std::all_of(counts, counts + rank_count, has);
  }
  // REQUIRES: all ranks have read the part before.
  void Write(const float* contribution, size_t size) const {
    if (aborted) return;
    std::copy_n(contribution, size, segment->parts[rank]);
    ++segment->written[rank];
  }
  void Sum(float* sum, size_t size) const {
    if (aborted) return;
    for (size_t i = 0; i < size; ++i) sum[i] = TreeSum(*segment, i, 0, rank_count);
    ++segment->read[rank];
  }

  Segment* const segment;
  const int rank, rank_count;
  std::atomic<bool> aborted = false;
};

}  // namespace

struct CommunicatorOfNccl {
  std::shared_ptr<Ranks> ranks;
  std::string name;
  int64_t part_count = 0;  // of all operations so far
  std::atomic<bool> in_progress = false;
  std::atomic<int> error = kSuccess;
  std::thread thread;

  template <typename Work>
  int Start(const Work& work) {
    if (thread.joinable()) thread.join();
    in_progress = true;
    thread = std::thread([this, work] {
      work();
      in_progress = false;
    });
    return kInProgress;
  }

  void Join() const {
    ++ranks->segment->joined_count;
    while (!ranks->aborted && ranks->segment->joined_count < ranks->rank_count) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // other processes ring no bell
    }
    if (ranks->rank == 0) shm_unlink(name.c_str());
  }

  void AllReduce(const float* contribution, float* sum, size_t count, void* stream) {
    const auto enqueue = [&](const std::function<bool()>& is_ready, const std::function<void()>& run) {
      if (StarringEnqueueOnEmulatedStream(stream, is_ready, run) != 0) error = kSystemError;
    };
    for (size_t begin = 0; begin < count; begin += kPartFloats, ++part_count) {
      const size_t size = std::min(kPartFloats, count - begin);
      enqueue([all = ranks, part = part_count] { return all->All(all->segment->read, part); },
              [all = ranks, from = contribution + begin, size] { all->Write(from, size); });
      enqueue([all = ranks, part = part_count] { return all->All(all->segment->written, part + 1); },
              [all = ranks, to = sum + begin, size] { all->Sum(to, size); });
    }
  }
};

extern "C" {

int ncclGetVersion(int* version) {
  const char* const asked = std::getenv("NCCL_STUB_VERSION");
  *version = asked == nullptr ? 22705 : std::atoi(asked);
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "invalid usage" : result == kSuccess ? "no error" : "an error of the stub";
}

const char* ncclGetLastError(CommunicatorOfNccl*) { return LastError().c_str(); }

int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id->bytes, sizeof(id->bytes), "/starring-nccl-stub-%d-%lld", getpid(), static_cast<long long>(now));
  const int fd = shm_open(id->bytes, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return Refuse(kSystemError, "shm_open");
  const bool fits = ftruncate(fd, sizeof(Segment)) == 0;
  close(fd);
  return fits ? kSuccess : Refuse(kSystemError, "ftruncate");
}

int ncclCommInitRankConfig(CommunicatorOfNccl** result, int rank_count, UniqueId id, int rank, Config* config) {
  if (config->magic != kConfigMagic || config->size < sizeof(Config) || config->blocking != 0) {
    return Refuse(kInvalidArgument, "the stub's communicators do not block");
  }
  if (rank < 0 || rank >= rank_count || rank_count > kRanksMax) return Refuse(kInvalidArgument, "ranks");
  const int fd = shm_open(id.bytes, O_RDWR, 0600);
  if (fd < 0) return Refuse(kSystemError, "shm_open");
  void* const memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return Refuse(kSystemError, "mmap");
  auto* const comm = new CommunicatorOfNccl;
  comm->ranks = std::make_shared<Ranks>(static_cast<Segment*>(memory), rank, rank_count);
  comm->name = id.bytes;
  *result = comm;
  return comm->Start([comm] { comm->Join(); });
}

int ncclCommGetAsyncError(CommunicatorOfNccl* comm, int* error) {
  *error = comm->in_progress ? kInProgress : comm->error.load();
  return kSuccess;
}

int ncclAllReduce(const void* contribution, void* sum, size_t count, int type, int operation, CommunicatorOfNccl* comm,
                  void* stream) {
  if (comm->in_progress) return Refuse(kInvalidUsage, "another call is in progress");
  if (type != kFloat32 || operation != kSum || stream == nullptr) return Refuse(kInvalidArgument, "sums of float32");
  if (StarringEnqueueOnEmulatedStream == nullptr) return Refuse(kSystemError, "no emulated GPU");
  const auto* const from = static_cast<const float*>(contribution);
  auto* const to = static_cast<float*>(sum);
  return comm->Start([=] { comm->AllReduce(from, to, count, stream); });
}

int ncclCommAbort(CommunicatorOfNccl* comm) {
  comm->ranks->aborted = true;
  if (comm->thread.joinable()) comm->thread.join();
  delete comm;
  return kSuccess;
}

}  // extern "C"
