#include "common/transport/mpi/mpi_runtime.h"

#include <mpi.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/host/bundled_open_mpi.h"
#include "common/host/log.h"
#include "common/watch/roll_call.h"
#include "common/watch/stall_report.h"

namespace starring {
namespace {

constexpr int kExitPeerMissing = 3;
constexpr absl::Duration kFinalizeDeadline = absl::Seconds(30);

// A line before the deadline of a Watchdog. Without `after` there is none.
struct EarlyReport {
  absl::Duration after = absl::ZeroDuration();
  std::string sentence = "";
  std::function<void(const std::string&)> say = nullptr;
};

// Ends the process when a call that cannot be interrupted takes longer than `deadline`.
class Watchdog {
 public:
  Watchdog(absl::Duration deadline, std::string message, EarlyReport early_report = {})
      : thread_([this, deadline, text = std::move(message), early = std::move(early_report)] {
          const auto begin = std::chrono::steady_clock::now();
          StallReport report(early.say);
          const MutexLock lock(mutex_);
          if (early.after > absl::ZeroDuration() && early.after < deadline) {
            if (IsOverWithin(early.after)) return;
            report.Open(0, begin, StallSentence(std::chrono::steady_clock::now() - begin, "joining", early.sentence));
          }
          if (IsOverWithin(deadline - (report.IsOpen(0) ? early.after : absl::ZeroDuration()))) {
            report.Close(0, std::chrono::steady_clock::now());
            return;
          }
          // _exit runs no destructors, which would wait for the thread that is stuck in MPI; so output is flushed by
          // hand.
          std::fflush(stdout);
          Log(text, LogLevel::kError);
          _exit(kExitPeerMissing);
        }) {}
  ~Watchdog() {
    {
      const MutexLock lock(mutex_);
      over_ = true;
    }
    is_over_.NotifyOne();
    thread_.join();
  }

 private:
  bool IsOverWithin(absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_over_.WaitFor(mutex_, absl::ToChronoNanoseconds(patience),
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_; });
  }

  Mutex mutex_;
  ConditionVariable is_over_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Open MPI copies large messages between processes of one host with process_vm_readv. Containers often forbid it, and
// then every such message fails before Open MPI goes another way.
void AvoidForbiddenSingleCopy() {
  int from = 1;
  int to = 0;
  const iovec local = {&to, sizeof(to)};
  const iovec remote = {&from, sizeof(from)};
  // This is tried on this process itself, so no peer is needed. A user's own setting stays (replace 0).
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof(to)) return;
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*replace=*/0);
}

// MPI announces a message above the eager limit and sends it only after the receiver's answer, which queues after the
// chunks that travel the other way. The ring does not need that protection: it posts its receives first and bounds what
// is in flight. So each chunk may be sent at once.
void SendChunksEagerly() {
  constexpr int64_t kHeaderBytesMax = 1024;
  setenv("OMPI_MCA_btl_tcp_eager_limit", absl::StrCat(kChunkBytesMax + kHeaderBytesMax).c_str(), /*replace=*/0);
}

absl::Status CheckWorldSize(int world_size, const LauncherEnvironment& launcher) {
  if (world_size == launcher.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("MPI sees ", world_size, world_size == 1 ? " rank, " : " ranks, ",
                   std::string(LauncherName(launcher.launcher)), " started ", launcher.world_size,
                   ": start the workers with Open MPI's mpirun, or with srun --mpi=pmix (srun --mpi=list says ",
                   "whether it has it)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiRuntime>> MpiRuntime::Start(const LauncherEnvironment& launcher,
                                                              const MpiStartOptions& options) {
  // Open MPI reads these variables in MPI_Init. No other thread runs yet that could read the environment meanwhile
  // (worker/main.cc).
  AvoidForbiddenSingleCopy();
  SendChunksEagerly();
  // The bundle's mpirun has set these variables for its ranks already; srun has not.
  if (const std::string bundle = BundleFolder(); !bundle.empty()) UseBundledOpenMpi(bundle);
  int granted = MPI_THREAD_SINGLE;
  {
    Watchdog watchdog(
        options.join_deadline,
        absl::StrCat("rank ", launcher.rank, " of ", launcher.world_size, " waited ",
                     absl::FormatDuration(options.join_deadline), " in MPI_Init: another rank did not start",
                     options.note.empty() ? "" : ": ", options.note),
        {.after = options.stall_report,
         .sentence = absl::StrCat("another of ", launcher.world_size, " ranks is not in MPI_Init yet"),
         .say = [](const std::string& line) { Log(line); }});
    // MPI_THREAD_MULTIPLE is not asked for: with it every call would take Open MPI's own locks.
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &granted) != MPI_SUCCESS) {
      return absl::InternalError("MPI_Init_thread failed");
    }
  }
  std::unique_ptr<MpiRuntime> runtime(new MpiRuntime);
  MPI_Comm_rank(MPI_COMM_WORLD, &runtime->rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &runtime->world_size_);
  if (granted < MPI_THREAD_SERIALIZED) {
    return absl::InternalError(absl::StrCat("MPI grants thread level ", granted, ", MPI_THREAD_SERIALIZED (",
                                            MPI_THREAD_SERIALIZED, ") is needed: use an MPI built with threads"));
  }
  if (absl::Status status = CheckWorldSize(runtime->world_size_, launcher); !status.ok()) return status;
  return runtime;
}

MpiRuntime::~MpiRuntime() {
  Watchdog watchdog(kFinalizeDeadline, absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(kFinalizeDeadline),
                                                    " in MPI_Finalize: another rank did not get there"));
  // All ranks wait here for each other. One that is stuck after its last step would keep the others for ever.
  MPI_Finalize();
}

void MpiRuntime::ExitWithoutFinalize(int exit_code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(exit_code);
}

}  // namespace starring
