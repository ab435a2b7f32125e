// What a check before training needs of MPI: a board of names, a gathering that may fail, and messages between pairs
// that may never arrive.
//
// No call here waits without an end. After a failure MPI may be stuck: then leave by MpiRuntime::ExitWithoutFinalize.
//
// Thread safety: the thread that created the MpiRuntime.
#ifndef STARRING_WORKER_EXCHANGE_PEER_MPI_PROBE_H_
#define STARRING_WORKER_EXCHANGE_PEER_MPI_PROBE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/peer/mpi_runtime.h"

namespace starring {

class MpiProbe {
 public:
  // Errors of MPI are returned from now on, by all of this process. `runtime` outlives the probe.
  explicit MpiProbe(MpiRuntime* runtime);
  // Leaves MPI's buffers alone if messages are still under way.
  ~MpiProbe();
  MpiProbe(const MpiProbe&) = delete;
  MpiProbe& operator=(const MpiProbe&) = delete;

  // Names travel by the launcher's own connections, not by those of messages. Only mpirun has them: elsewhere Open MPI
  // prints a warning, and fails. Text of any length without zero bytes; a name is published once.
  absl::Status Publish(const std::string& name, const std::string& text);
  absl::StatusOr<std::optional<std::string>> Lookup(const std::string& name);

  // Every rank's text, by MPI's messages. All ranks call it. DeadlineExceeded at `end`.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& text, absl::Time end);

  // Answers other ranks' Measure for as long as `pause`, and longer while messages come. Call it often.
  void Serve(absl::Duration pause);

  struct Measurement {
    double round_trip_us = 0;
    double bytes_per_second = 0;
  };
  // Sends to `peer`, which is in Serve now and then. As much as takes `seconds`, at most limits.h's.
  absl::StatusOr<Measurement> Measure(int peer, double seconds, absl::Time end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "Open MPI 4.1.4"
std::string MpiVersion();

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_MPI_PROBE_H_
