#include "common/transport/mpi/mpi_runtime.h"

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
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/host/log.h"
#include "common/transport/mpi/bundled_open_mpi.h"
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

absl::Status CheckWorldSize(int world_size, const LauncherEnvironment& launcher, const MpiLibrary& library) {
  if (world_size == launcher.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "MPI sees ", world_size, world_size == 1 ? " rank, " : " ranks, ", std::string(LauncherName(launcher.launcher)),
      " started ", launcher.world_size, ": the library is ", library.Name(),
      library.file.empty() ? "" : absl::StrCat(" (", library.file, ")"),
      ", so start the workers with its own mpirun or mpiexec, with srun --mpi=pmix or pmi2 (srun --mpi=list ",
      "says whether it has it), or name the launcher's library by --mpi=PATH"));
}

// The bundle's mpirun has set its variables for its ranks already; srun has not. They are wrong for another Open MPI.
void PrepareOpenMpi(const MpiLibrary& library) {
  AvoidForbiddenSingleCopy();
  SendChunksEagerly();
  const std::string bundle = BundleFolder();
  // A program of the bundle that is linked with an MPI has the bundle's.
  const bool is_bundled = library.file.empty() || library.file.starts_with(bundle + "/");
  if (!bundle.empty() && is_bundled) UseBundledOpenMpi(bundle);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiRuntime>> MpiRuntime::Start(const LauncherEnvironment& launcher,
                                                              const MpiStartOptions& options) {
  ASSIGN_OR_RETURN(MpiLibrary library, LoadMpiLibrary(options.library, launcher.launcher));
  // Open MPI reads variables in MPI_Init. No other thread runs yet that could read the environment meanwhile
  // (worker/main.cc).
  if (library.family() == MpiFamily::kOpenMpi) PrepareOpenMpi(library);
  int granted = -1;
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
    const int code = std::visit(
        [&](const auto& calls) { return calls.mpi.Init_thread(nullptr, nullptr, kMpiThreadSerialized, &granted); },
        library.calls);
    if (code != kMpiSuccess) return absl::InternalError(absl::StrCat("MPI_Init_thread failed: ", library.Name()));
  }
  std::unique_ptr<MpiRuntime> runtime(new MpiRuntime(std::move(library)));
  std::visit(
      [&](const auto& calls) {
        runtime->finalize_ = calls.mpi.Finalize;
        calls.mpi.Comm_rank(calls.handles.world, &runtime->rank_);
        calls.mpi.Comm_size(calls.handles.world, &runtime->world_size_);
      },
      runtime->library_.calls);
  if (granted < kMpiThreadSerialized) {
    return absl::InternalError(absl::StrCat("MPI grants thread level ", granted, ", MPI_THREAD_SERIALIZED (",
                                            kMpiThreadSerialized, ") is needed: use an MPI built with threads"));
  }
  RETURN_IF_ERROR(CheckWorldSize(runtime->world_size_, launcher, runtime->library_));
  return runtime;
}

MpiRuntime::~MpiRuntime() {
  Watchdog watchdog(kFinalizeDeadline, absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(kFinalizeDeadline),
                                                    " in MPI_Finalize: another rank did not get there"));
  // All ranks wait here for each other. One that is stuck after its last step would keep the others for ever.
  finalize_();
}

void MpiRuntime::ExitWithoutFinalize(int exit_code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(exit_code);
}

}  // namespace starring
