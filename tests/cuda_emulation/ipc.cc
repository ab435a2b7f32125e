// Memory that processes share: CUDA IPC over memory files, which the other process opens through /proc.
//
// A block begins as memory of its process alone. cudaIpcGetMemHandle moves the block into a memory file and maps that
// file at the same address. The file's last page says whether the block still exists and which processes have it open.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/memory.h"
#include "tests/cuda_emulation/queues.h"
#include "tests/cuda_emulation/streams.h"

namespace starring::cuda_emulation {
namespace {

constexpr char kName[] = "starring-emulated-gpu";
constexpr char kLink[] = "/memfd:starring-emulated-gpu";  // how /proc shows it
constexpr char kMagic[8] = "emuGPU1";
constexpr int kImportersMax = 64;
constexpr int kCorruptEvery = 8;  // pieces of work that write
constexpr int64_t kLatePieces = 3;

using Ipc = EmulatedGpu::Ipc;

struct Handle {
  char magic[sizeof(kMagic)];
  uint64_t boot, nonce, size_bytes;
  int32_t pid, fd, gpu;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

// The last page of the file.
struct FilePage {
  std::atomic<uint64_t> nonce;                    // 0: the block is freed
  std::atomic<int32_t> importers[kImportersMax];  // process ids; 0: none
};
static_assert(sizeof(FilePage) <= kPageBytes);

struct Export {
  int fd = -1;
  FilePage* page = nullptr;
  Handle handle = {};
};

// A written word that other processes do not see yet.
struct LateWord {
  int64_t due;  // pieces of work that have ended by then
  size_t index;
  uint32_t value;
};

struct Opened {
  char* visible = nullptr;  // as the other process sees it; not the map's key only if it is visible late
  size_t size_bytes = 0;
  uint64_t nonce = 0;
  FilePage* page = nullptr;
  int opens = 0;
  std::vector<uint32_t> before;  // the words before the piece of work that runs
  std::deque<LateWord> late;

  size_t words() const { return size_bytes / sizeof(uint32_t); }
};

struct Shared {
  std::mutex mutex;
  std::map<void*, Export> exports;
  std::map<void*, Opened> opened;
  int64_t ended_count = 0, writing_count = 0;  // pieces of work, while memory with a fault is open
  std::mutex work_mutex;                       // held while they run
};
Shared& TheShared() {
  static Shared& shared = *new Shared;
  return shared;
}

std::atomic<bool> has_faults = false;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  int Take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

FilePage* MapPage(int fd, size_t size_bytes) {
  void* const page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(size_bytes));
  return page == MAP_FAILED ? nullptr : static_cast<FilePage*>(page);
}

// Moves the block into a file. Nothing may write to the block meanwhile.
cudaError_t Share(void* data, const Block& block, Export* exported) {
  File file(memfd_create(kName, MFD_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), static_cast<off_t>(block.size_bytes + kPageBytes)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  void* const mapping = mmap(nullptr, block.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  exported->page = MapPage(file.get(), block.size_bytes);
  if (mapping == MAP_FAILED || exported->page == nullptr) return cudaErrorMemoryAllocation;
  std::memcpy(mapping, data, block.size_bytes);
  if (mremap(mapping, block.size_bytes, block.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, data) == MAP_FAILED) {
    return cudaErrorMemoryAllocation;
  }
  Handle& handle = exported->handle;
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  while (handle.nonce == 0) {
    if (getrandom(&handle.nonce, sizeof(handle.nonce), 0) != sizeof(handle.nonce)) return cudaErrorMemoryAllocation;
  }
  exported->page->nonce = handle.nonce;
  exported->fd = file.Take();
  handle.boot = BootNumber();
  handle.size_bytes = block.size_bytes;
  handle.pid = getpid();
  handle.fd = exported->fd;
  handle.gpu = block.gpu;
  return cudaSuccess;
}

// The descriptor of the file that the handle names; -1: there is no such file.
int OpenFileOf(const Handle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  char link[sizeof(kLink)] = {};
  // Opening a device or a pipe may have effects.
  if (readlink(path.c_str(), link, sizeof(link)) < 0 || std::strncmp(link, kLink, sizeof(kLink) - 1) != 0) return -1;
  File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0 ||
      status.st_size != static_cast<off_t>(handle.size_bytes + kPageBytes)) {
    return -1;
  }
  return file.Take();
}

// Maps the file before a guard page; null: there is no memory.
void* MapOpened(int fd, size_t size_bytes, int flags) {
  void* const data = ReserveBeforeGuard(size_bytes);
  if (data == nullptr) return nullptr;
  return mmap(data, size_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED ? nullptr : data;
}

cudaError_t Open(const Handle& handle, void** data) {
  const File file(OpenFileOf(handle));
  if (file.get() < 0) return cudaErrorInvalidResourceHandle;
  FilePage* const page = MapPage(file.get(), handle.size_bytes);
  if (page == nullptr) return cudaErrorMapBufferObjectFailed;
  // The process id, or the number of the descriptor, may be another block's by now.
  if (page->nonce != handle.nonce) {
    munmap(page, kPageBytes);
    return cudaErrorInvalidResourceHandle;
  }
  const bool is_late = Gpu().ipc == Ipc::kLateVisible;
  void* const visible = MapOpened(file.get(), handle.size_bytes, Gpu().ipc == Ipc::kOneWay ? MAP_PRIVATE : MAP_SHARED);
  *data = is_late ? MapOpened(-1, handle.size_bytes, MAP_PRIVATE | MAP_ANONYMOUS) : visible;
  if (visible == nullptr || *data == nullptr) return cudaErrorMapBufferObjectFailed;
  if (is_late) std::memcpy(*data, visible, handle.size_bytes);
  for (auto& importer : page->importers) {
    int32_t none = 0;
    if (importer.compare_exchange_strong(none, getpid())) break;
  }
  TheShared().opened[*data] = {.visible = static_cast<char*>(visible),
                               .size_bytes = handle.size_bytes,
                               .nonce = handle.nonce,
                               .page = page,
                               .opens = 1};
  has_faults = has_faults || is_late || Gpu().ipc == Ipc::kCorrupt;
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  TheMemory().device[reinterpret_cast<uintptr_t>(*data)] = {
      .size_bytes = handle.size_bytes, .kind = Block::Kind::kOpened, .gpu = handle.gpu};
  return cudaSuccess;
}

// Faults.

void Arrive(Opened& memory, int64_t ended_count) {
  for (; !memory.late.empty() && memory.late.front().due <= ended_count; memory.late.pop_front()) {
    const LateWord& word = memory.late.front();
    std::memcpy(memory.visible + sizeof(uint32_t) * word.index, &word.value, sizeof(uint32_t));
  }
}

void BeginWork(char* data, Opened& memory) {
  memory.before.resize(memory.words());
  if (data != memory.visible) {
    // This process sees the writes of others at once, and its own as well.
    std::memcpy(data, memory.visible, memory.size_bytes);
    for (const LateWord& word : memory.late) {
      std::memcpy(data + sizeof(uint32_t) * word.index, &word.value, sizeof(uint32_t));
    }
  }
  std::memcpy(memory.before.data(), data, memory.size_bytes);
}

void EndWork(char* data, Opened& memory) {
  Shared& shared = TheShared();
  const auto* const words = reinterpret_cast<const uint32_t*>(data);
  std::vector<size_t> written;
  for (size_t i = 0; i < memory.words(); ++i) {
    if (words[i] != memory.before[i]) written.push_back(i);
  }
  if (data != memory.visible) {
    for (const size_t i : written) memory.late.push_back({shared.ended_count + kLatePieces, i, words[i]});
    Arrive(memory, shared.ended_count);
  } else if (!written.empty() && ++shared.writing_count % kCorruptEvery == 0) {
    const size_t chosen = written[static_cast<size_t>(shared.writing_count) * 7919 % written.size()];
    data[sizeof(uint32_t) * chosen + 2] ^= 1;  // of a float, a bit of the mantissa
  }
}

}  // namespace

uint64_t BootNumber() {
  static const uint64_t number = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    std::getline(file, text);
    uint64_t hash = 14695981039346656037u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return hash;
  }();
  return number;
}

void EndExport(void* data) {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  const auto found = shared.exports.find(data);
  if (found == shared.exports.end()) return;
  const Export& exported = found->second;
  exported.page->nonce = 0;
  for (const auto& importer : exported.page->importers) {
    if (importer == 0 || kill(importer, 0) != 0) continue;  // one that was killed could not say that it closed
    std::fprintf(stderr, "CUDA emulation: cudaFree of memory that process %d still has open\n", importer.load());
    std::abort();
  }
  munmap(exported.page, kPageBytes);
  close(exported.fd);
  shared.exports.erase(found);
}

void RunWork(const std::function<void()>& work) {
  if (!has_faults) return work();
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> work_lock(shared.work_mutex);
  const auto for_all = [&](auto function) {
    const std::lock_guard<std::mutex> lock(shared.mutex);
    for (auto& [data, memory] : shared.opened) function(static_cast<char*>(data), memory);
  };
  for_all(BeginWork);
  work();
  ++shared.ended_count;
  for_all(EndWork);
}

void* VisibleAddress(void* data) {
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  const auto after = shared.opened.upper_bound(data);
  if (after == shared.opened.begin()) return data;
  const auto& [begin, memory] = *std::prev(after);
  const ptrdiff_t offset = static_cast<char*>(data) - static_cast<char*>(begin);
  return offset < static_cast<ptrdiff_t>(memory.size_bytes) ? memory.visible + offset : data;
}

}  // namespace starring::cuda_emulation

using starring::cuda_emulation::Block;
using starring::cuda_emulation::FindBlock;
using starring::cuda_emulation::Gpu;
using starring::cuda_emulation::Handle;
using starring::cuda_emulation::IsCapturing;
using starring::cuda_emulation::Opened;
using starring::cuda_emulation::Pause;
using starring::cuda_emulation::ReturnIfAlive;
using starring::cuda_emulation::Shared;
using starring::cuda_emulation::TheMemory;
using starring::cuda_emulation::TheShared;
using Ipc = starring::cuda_emulation::EmulatedGpu::Ipc;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  ReturnIfAlive();
  if (IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  if (Gpu().ipc == Ipc::kNothing) return cudaErrorNotSupported;
  void* begin = nullptr;
  Block block;
  // A GPU would export the other small allocations of the same 2 MiB, too.
  if (!FindBlock(data, &begin, &block) || block.kind != Block::Kind::kPages) return cudaErrorInvalidValue;
  // Before the lock, which the work that runs may need.
  const Pause pause(Pause::Running::kIsAwaited);
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  auto exported = shared.exports.find(begin);
  if (exported == shared.exports.end()) {
    starring::cuda_emulation::Export fresh;
    if (const cudaError_t error = Share(begin, block, &fresh); error != cudaSuccess) return error;
    exported = shared.exports.emplace(begin, fresh).first;
  }
  *handle = {};
  std::memcpy(handle, &exported->second.handle, sizeof(Handle));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags) {
  ReturnIfAlive();
  if (IsCapturing()) return cudaErrorStreamCaptureUnsupported;
  if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
  if (Gpu().ipc == Ipc::kNothing) return cudaErrorNotSupported;
  if (Gpu().ipc == Ipc::kFull) return cudaErrorMemoryAllocation;
  Handle h;
  std::memcpy(&h, &handle, sizeof(h));
  if (std::memcmp(h.magic, starring::cuda_emulation::kMagic, sizeof(h.magic)) != 0 ||
      h.boot != starring::cuda_emulation::BootNumber()) {
    return cudaErrorInvalidResourceHandle;
  }
  if (h.pid == getpid()) return cudaErrorDeviceUninitialized;
  if (h.gpu != std::max(starring::cuda_emulation::CurrentGpu(), 0) && !Gpu().accesses_peers) {
    return cudaErrorPeerAccessUnsupported;
  }
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  for (auto& [address, memory] : shared.opened) {
    if (memory.nonce != h.nonce) continue;
    ++memory.opens;
    *data = address;
    return cudaSuccess;
  }
  return Open(h, data);
}

cudaError_t cudaIpcCloseMemHandle(void* data) {
  ReturnIfAlive();
  Shared& shared = TheShared();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  const auto found = shared.opened.find(data);
  if (found == shared.opened.end()) return cudaErrorInvalidValue;
  Opened& memory = found->second;
  if (--memory.opens > 0) return cudaSuccess;
  starring::cuda_emulation::Arrive(memory, std::numeric_limits<int64_t>::max());
  {
    const std::lock_guard<std::mutex> memory_lock(TheMemory().mutex);
    TheMemory().device.erase(reinterpret_cast<uintptr_t>(data));
  }
  for (auto& importer : memory.page->importers) {
    int32_t self = getpid();
    if (importer.compare_exchange_strong(self, 0)) break;
  }
  munmap(memory.page, starring::cuda_emulation::kPageBytes);
  if (memory.visible != data) starring::cuda_emulation::ReleaseWithGuard(memory.visible, memory.size_bytes);
  starring::cuda_emulation::ReleaseWithGuard(data, memory.size_bytes);
  shared.opened.erase(found);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  if (ordinal < 0 || ordinal >= Gpu().count || peer < 0 || peer >= Gpu().count) return cudaErrorInvalidDevice;
  *can = ordinal != peer && Gpu().accesses_peers ? 1 : 0;
  return cudaSuccess;
}
