#include "worker/data/files/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"

namespace starring {

// A handler may only read atomic numbers. `begin` is 0 in a free entry, and 1 in one that is being filled.
struct MappedFileEntry {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<int64_t> lost{-1};  // the first byte that was found to be missing
};

namespace {

constexpr int64_t kNanosecondsInSecond = 1'000'000'000;

uintptr_t PageBytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

int64_t ChangedNs(const struct stat& facts) {
  return int64_t{facts.st_mtim.tv_sec} * kNanosecondsInSecond + facts.st_mtim.tv_nsec;
}

// The handler's memory exists for as long as the process: a thread may fault while the process ends.
std::array<MappedFileEntry, MappedFile::kMappedFilesMax> g_entries;
struct sigaction g_before;

void OnBusError(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedFileEntry& entry : g_entries) {
    const uintptr_t begin = entry.begin;
    if (begin <= 1 || address < begin || address >= entry.end) continue;
    int64_t none = -1;
    entry.lost.compare_exchange_strong(none, static_cast<int64_t>(address - begin));
    void* const page = reinterpret_cast<void*>(address & ~(PageBytes() - 1));
    // The read is repeated when the handler returns, and finds zeros.
    if (mmap(page, PageBytes(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) break;
    errno = saved_errno;
    return;
  }
  if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(number, info, context);
  if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) return g_before.sa_handler(number);
  signal(number, SIG_DFL);  // the read is repeated, and ends the process
}

// A free entry, which is the caller's; null if there is none.
MappedFileEntry* TakeEntry() {
  static absl::once_flag installed;
  absl::call_once(installed, [] {
    PageBytes();  // now: a handler must not initialise it
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &g_before);
  });
  for (MappedFileEntry& entry : g_entries) {
    uintptr_t free = 0;
    if (entry.begin.compare_exchange_strong(free, 1)) return &entry;
  }
  return nullptr;
}

}  // namespace

MappedFile::MappedFile(std::string path, int descriptor, const uint8_t* data, int64_t size_bytes, int64_t changed_ns,
                       MappedFileEntry* entry)
    : path_(std::move(path)),
      descriptor_(descriptor),
      data_(data),
      size_bytes_(size_bytes),
      changed_ns_(changed_ns),
      entry_(entry) {}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Map(const std::string& path, int descriptor,
                                                                  int64_t size_bytes) {
  struct stat facts = {};
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0 || fstat(own, &facts) != 0) {
    const int error = errno;
    if (own >= 0) close(own);
    return absl::ErrnoToStatus(error, absl::StrCat(path, " cannot be mapped"));
  }
  MappedFileEntry* const entry = TakeEntry();
  if (entry == nullptr) {
    close(own);
    return absl::ResourceExhaustedError(absl::StrCat(path, " would be the mapped file number ", kMappedFilesMax + 1,
                                                     " of this process, the limit is ", kMappedFilesMax,
                                                     ": give the data in fewer files, or --map_data=never"));
  }
  void* const data = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ, MAP_SHARED, own, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(own);
    entry->begin = 0;
    return absl::ResourceExhaustedError(absl::StrCat(path, " cannot be mapped, ", size_bytes, " bytes: ",
                                                     strerror(error), ": raise ulimit -v, or give --map_data=never"));
  }
  entry->lost = -1;
  entry->end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(size_bytes);
  entry->begin = reinterpret_cast<uintptr_t>(data);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, own, static_cast<const uint8_t*>(data), size_bytes, ChangedNs(facts), entry));
}

MappedFile::~MappedFile() {
  entry_->begin = 0;  // before other memory may get these addresses
  munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_bytes_));
  close(descriptor_);
}

void MappedFile::ExpectRandomReads() const {
  madvise(const_cast<uint8_t*>(data_), static_cast<size_t>(size_bytes_), MADV_RANDOM);
}

void MappedFile::AskAhead(int64_t offset, int64_t count) const {
  const auto begin = (reinterpret_cast<uintptr_t>(data_) + static_cast<uintptr_t>(offset)) & ~(PageBytes() - 1);
  const auto end = reinterpret_cast<uintptr_t>(data_) + static_cast<uintptr_t>(offset + count);
  // A failure is no loss: the bytes are read when they are used.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void MappedFile::ReadAt(int64_t offset, std::span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      int64_t none = -1;
      entry_->lost.compare_exchange_strong(none, offset);
      std::ranges::fill(out, uint8_t{0});
      return;
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

absl::Status MappedFile::Check() const {
  const int64_t lost = entry_->lost;
  if (lost < 0) return absl::OkStatus();
  struct stat facts = {};
  fstat(descriptor_, &facts);
  if (facts.st_size < size_bytes_) {
    return absl::DataLossError(absl::StrCat(path_, " was cut while it was in use: expected ", size_bytes_,
                                            " bytes, found ", facts.st_size,
                                            ": leave a file of data as it is until the run ends"));
  }
  return absl::DataLossError(absl::StrCat(path_, " cannot be read at its byte ", lost, " of ", size_bytes_,
                                          ": see the system's log about its disk, or copy it again"));
}

absl::Status MappedFile::CheckUnchanged() const {
  if (absl::Status status = Check(); !status.ok()) return status;
  struct stat facts = {};
  if (fstat(descriptor_, &facts) != 0) return absl::OkStatus();  // a descriptor that is ours and open
  if (facts.st_size == size_bytes_ && ChangedNs(facts) == changed_ns_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, " was changed while it was in use: it had ", size_bytes_,
                                          " bytes and has ", facts.st_size,
                                          ": write another file and leave this one as it is until the run ends"));
}

}  // namespace starring
