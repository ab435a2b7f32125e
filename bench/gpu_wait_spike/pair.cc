#include "bench/gpu_wait_spike/pair.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;

// More meetings than any process makes, so no Meet waits for a process that has ended.
constexpr uint64_t kEnded = std::numeric_limits<uint64_t>::max();
constexpr std::chrono::milliseconds kGrace{2000};     // between the abort word and the kill
constexpr std::chrono::milliseconds kKillWait{5000};  // for a killed process, whose GPU must first be taken from it
constexpr std::chrono::milliseconds kLookPeriod{2};   // between looks at the processes
constexpr std::chrono::microseconds kBusyWait{50};    // of Meet, before it gives the core away

template <size_t kSize>
void Copy(absl::string_view text, std::array<char, kSize>* to) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::copy_n(text.begin(), length, to->begin());
  (*to)[length] = 0;
}

// In a child: runs the part and leaves its report.
[[noreturn]] void RunChild(const Part& part, int index, pid_t parent, SharedPages* pages) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  Peer peer(index, pages);
  const absl::Status status = part(peer);
  Report& report = pages->reports[static_cast<size_t>(index)];
  report.code = status.raw_code();
  Copy(status.message(), &report.error);
  SharedPages::Arrival& arrival = pages->arrivals[static_cast<size_t>(index)];
  // `failed` comes first: the other process leaves its loop in Meet by `count`, and then looks at `failed`.
  if (!status.ok()) arrival.failed = true;
  arrival.count = kEnded;
  // The parent's exit handlers and unwritten output are not the child's to run and write.
  _exit(0);
}

// Waits for both until the deadline; then asks, then kills. Returns what is wrong with their ends.
class Children {
 public:
  Children(std::array<pid_t, 2> pids, SharedPages* pages) : pids_(pids), pages_(pages) {}

  absl::Status WaitFor(std::chrono::milliseconds deadline) {
    if (WaitUntil(Clock::now() + deadline)) return status_;
    status_ = absl::DeadlineExceededError(absl::StrCat("no end after ", deadline.count(), " ms"));
    // Word 0 is BoardWord::kAbort.
    std::atomic_ref<uint64_t>(pages_->board.words[0]).store(1);
    if (WaitUntil(Clock::now() + kGrace)) return status_;
    for (const pid_t pid : pids_) {
      // 0 is a process that was reaped, -1 a failed fork. As arguments of kill both would name groups of processes.
      if (pid > 0) kill(pid, SIGKILL);
    }
    if (!WaitUntil(Clock::now() + kKillWait)) {
      status_ = absl::DeadlineExceededError(absl::StrCat(status_.message(), ", and SIGKILL did not end a process"));
    }
    return status_;
  }

 private:
  // Whether both have ended.
  bool WaitUntil(Clock::time_point end) {
    while (true) {
      for (size_t i = 0; i < 2; ++i) {
        int wait_status = 0;
        if (pids_[i] <= 0 || waitpid(pids_[i], &wait_status, WNOHANG) != pids_[i]) continue;
        pids_[i] = 0;
        SharedPages::Arrival& arrival = pages_->arrivals[i];
        // A process that has not set its count itself has died in the middle of its part.
        if (arrival.count != kEnded) {
          if (status_.ok()) {
            status_ = absl::AbortedError(
                WIFSIGNALED(wait_status) ? absl::StrCat("process ", i, " was ended by signal ", WTERMSIG(wait_status))
                                         : absl::StrCat("process ", i, " ended with ", WEXITSTATUS(wait_status)));
          }
          arrival.failed = true;
          arrival.count = kEnded;
        }
      }
      if (pids_[0] <= 0 && pids_[1] <= 0) return true;
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(kLookPeriod);  // waitpid has no deadline
    }
  }

  std::array<pid_t, 2> pids_;
  SharedPages* const pages_;
  absl::Status status_;
};

// The error of the process that failed of itself: the other one's is only that the first one failed.
absl::Status ErrorOf(const SharedPages& pages, const absl::Status& ends) {
  absl::Status found = ends;
  for (size_t i = 0; i < 2; ++i) {
    const Report& report = pages.reports[i];
    if (report.code == 0) continue;
    const auto code = static_cast<absl::StatusCode>(report.code);
    if (found.ok() || (absl::IsAborted(found) && code != absl::StatusCode::kAborted)) {
      // Unavailable: there is no GPU. Both processes say so, and a number would name one of them.
      found = absl::Status(code, code == absl::StatusCode::kUnavailable
                                     ? std::string(report.error.data())
                                     : absl::StrCat("process ", i, ": ", report.error.data()));
    }
  }
  return found;
}

}  // namespace

absl::Status Peer::StillWanted() {
  const SharedPages::Arrival& other = pages_->arrivals[static_cast<size_t>(1 - index_)];
  if (other.failed) return absl::AbortedError("the other process has failed");
  if (word(BoardWord::kAbort).load() != 0) return absl::AbortedError("the deadline of this part is over");
  return absl::OkStatus();
}

absl::Status Peer::Meet() {
  ++meetings_;
  pages_->arrivals[static_cast<size_t>(index_)].count = meetings_;
  const std::atomic<uint64_t>& other = pages_->arrivals[static_cast<size_t>(1 - index_)].count;
  const Clock::time_point begin = Clock::now();
  while (other < meetings_) {
    if (absl::Status wanted = StillWanted(); !wanted.ok()) return wanted;
    if (Clock::now() - begin > kBusyWait) sched_yield();
  }
  return StillWanted();
}

void Peer::Note(absl::string_view line) {
  Report& report = pages_->reports[static_cast<size_t>(index_)];
  Copy(absl::StrCat(report.notes.data(), line, "\n"), &report.notes);
}

void Peer::AddSample(int series, double value) {
  Report& report = pages_->reports[static_cast<size_t>(index_)];
  const auto row = static_cast<size_t>(series);
  if (report.counts[row] < kSamplesMax) {
    report.samples[row][static_cast<size_t>(report.counts[row]++)] = value;
  }
}

PairResult RunPair(const Part& part, std::chrono::milliseconds deadline) {
  PairResult result;
  // Anonymous shared memory is zero, which is a valid value of every field.
  void* const memory = mmap(nullptr, sizeof(SharedPages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    result.status = absl::ErrnoToStatus(errno, "mmap of the shared pages");
    return result;
  }
  auto* const pages = static_cast<SharedPages*>(memory);
  std::fflush(nullptr);  // else a child would print what the parent has not yet
  std::array<pid_t, 2> pids{};
  const pid_t parent = getpid();
  for (int i = 0; i < 2; ++i) {
    const pid_t pid = fork();
    if (pid == 0) RunChild(part, i, parent, pages);
    if (pid < 0) {
      result.status = absl::ErrnoToStatus(errno, "fork");
      pages->arrivals[static_cast<size_t>(i)].failed = true;
      pages->arrivals[static_cast<size_t>(i)].count = kEnded;
    }
    pids[static_cast<size_t>(i)] = pid;
  }
  const absl::Status ends = Children(pids, pages).WaitFor(deadline);
  if (result.status.ok()) result.status = ErrorOf(*pages, ends);
  for (const Report& report : pages->reports) {
    for (const auto line : absl::StrSplit(report.notes.data(), '\n', absl::SkipEmpty()))
      result.notes.emplace_back(line);
  }
  for (size_t row = 0; row < kSeriesMax; ++row) {
    const Report& report = pages->reports[0];
    result.series[row].assign(report.samples[row].begin(), report.samples[row].begin() + report.counts[row]);
  }
  munmap(memory, sizeof(SharedPages));
  return result;
}

}  // namespace starring::gpu_wait
