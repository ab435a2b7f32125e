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

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

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

uintptr_t RoundUpToPage(uintptr_t address) { return (address + PageBytes() - 1) & ~(PageBytes() - 1); }

int64_t ChangedNs(const struct stat& facts) {
  return int64_t{facts.st_mtim.tv_sec} * kNanosecondsInSecond + facts.st_mtim.tv_nsec;
}

// The handler's memory exists for as long as the process: a thread may fault while the process ends.
std::array<MappedFileEntry, MappedFile::kMappedFilesMax> g_entries;
struct sigaction g_before;
std::atomic<bool> g_passed_on{false};

// Zeros from the page of `address` to the end of the entry: a run does not go on with a file that has lost a part, and
// a mapping for each page could be more than the system grants.
bool PutZeros(const MappedFileEntry& entry, void* address) {
  const uintptr_t in_page = reinterpret_cast<uintptr_t>(address) & (PageBytes() - 1);
  char* const page = static_cast<char*>(address) - in_page;
  const uintptr_t bytes = entry.end - reinterpret_cast<uintptr_t>(page);
  // POSIX does not list mmap for handlers. On Linux it is a plain system call that takes no lock of the process.
  return mmap(page, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// Hands a signal that is not ours to the handler before. That one may hand it back (Python's faulthandler does): then
// it ends the process.
void PassOn(int number, siginfo_t* info, void* context) {
  const bool was_sent = info->si_code <= 0;  // by kill, and not by a read
  const bool has_info = (g_before.sa_flags & SA_SIGINFO) != 0;
  if (g_before.sa_handler == SIG_IGN && was_sent) return;
  const bool has_handler = has_info || (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN);
  if (has_handler && !g_passed_on.exchange(true)) {
    if (has_info) {
      g_before.sa_sigaction(number, info, context);
    } else {
      g_before.sa_handler(number);
    }
    g_passed_on = false;
    return;
  }
  signal(number, SIG_DFL);
  // A read is repeated, and ends the process; a signal that was sent is sent again.
  if (was_sent) raise(number);
}

void OnBusError(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedFileEntry& entry : g_entries) {
    const uintptr_t begin = entry.begin;
    if (info->si_code <= 0 || begin <= 1 || address < begin || address >= entry.end) continue;
    // Only the first loss is kept: Check names one byte.
    int64_t none = -1;
    entry.lost.compare_exchange_strong(none, static_cast<int64_t>(address - begin));
    if (!PutZeros(entry, info->si_addr)) break;
    errno = saved_errno;
    return;
  }
  PassOn(number, info, context);
}

// Gives a free entry to the caller; null if all are taken.
MappedFileEntry* TakeEntry() {
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

void MappedFile::CatchBusErrors() {
  static Mutex mutex;
  const MutexLock lock(mutex);
  PageBytes();  // now: a handler must not initialise it
  struct sigaction now = {};
  sigaction(SIGBUS, nullptr, &now);
  // Otherwise the handler would become its own predecessor, and the true one would be lost.
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnBusError) return;
  g_before = now;
  struct sigaction ours = {};
  ours.sa_sigaction = OnBusError;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // a handler that hands a signal back raises it
  sigaction(SIGBUS, &ours, nullptr);
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Map(const std::string& path, int descriptor,
                                                                  int64_t size_bytes) {
  struct stat facts = {};
  // The caller may close its descriptor, while ReadAt and Check use this one until the destructor.
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0 || fstat(own, &facts) != 0) {
    const int error = errno;
    if (own >= 0) close(own);
    return absl::ErrnoToStatus(error, absl::StrCat(path, " cannot be mapped"));
  }
  CatchBusErrors();
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
  // `begin` is stored last: the handler ignores the entry until then.
  entry->lost = -1;
  entry->end = RoundUpToPage(reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(size_bytes));
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
  // A mapping begins at a page, so a page of it begins at a multiple in the file.
  const int64_t begin = offset & ~static_cast<int64_t>(PageBytes() - 1);
  // A failure is no loss: the bytes are read when they are used.
  madvise(const_cast<uint8_t*>(data_) + begin, static_cast<size_t>(offset + count - begin), MADV_WILLNEED);
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
  struct stat facts = {};
  if (fstat(descriptor_, &facts) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path_, " cannot be checked"));
  // The size comes before a lost byte: a cut explains the loss.
  if (facts.st_size < size_bytes_) {
    return absl::DataLossError(absl::StrCat(path_, " was cut while it was in use: expected ", size_bytes_,
                                            " bytes, found ", facts.st_size,
                                            ": leave a file of data as it is until the run ends"));
  }
  if (facts.st_size != size_bytes_ || ChangedNs(facts) != changed_ns_) {
    return absl::DataLossError(absl::StrCat(path_, " was changed while it was in use: it had ", size_bytes_,
                                            " bytes and has ", facts.st_size,
                                            ": write another file and leave this one as it is until the run ends"));
  }
  if (lost < 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, " cannot be read at its byte ", lost, " of ", size_bytes_,
                                          ": see the system's log about its disk, or copy it again"));
}

}  // namespace starring
