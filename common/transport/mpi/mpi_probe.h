// The parts of MPI that a check before training uses: a board of names, a gathering that may fail, and messages between
// pairs of ranks that may never arrive.
//
// Every wait has an end. After a failure MPI may be stuck: then leave by MpiRuntime::ExitWithoutFinalize.
//
// Thread safety: the thread that created the MpiRuntime.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_PROBE_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_PROBE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/mpi/mpi_runtime.h"

namespace starring {

class MpiProbe {
 public:
  // From now on MPI returns its errors, to every caller in this process, instead of ending it. `runtime` outlives the
  // probe.
  explicit MpiProbe(MpiRuntime* runtime);
  // Leaks the buffers of messages that are still in flight, because MPI may still write to them.
  ~MpiProbe();
  MpiProbe(const MpiProbe&) = delete;
  MpiProbe& operator=(const MpiProbe&) = delete;

  // Names travel through the launcher's own connections, so they arrive even if no message between ranks does. Only
  // mpirun has them: under other launchers Open MPI prints a warning and fails. The text may have any length and no
  // zero bytes; a name is published once.
  absl::Status Publish(const std::string& name, const std::string& text);
  absl::StatusOr<std::optional<std::string>> Lookup(const std::string& name);

  // Returns every rank's text, which travels by MPI's messages. All ranks call it. DeadlineExceeded at `end`.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& text, absl::Time end);

  // Answers other ranks' Measure for as long as `pause`, and longer while messages come. Call it often.
  void Serve(absl::Duration pause);

  struct Measurement {
    double round_trip_us = 0;
    double bytes_per_second = 0;
  };
  // Sends to `peer`, which must keep calling Serve: for `seconds`, and at most kCheckBandwidthBytesMax of limits.h.
  absl::StatusOr<Measurement> Measure(int peer, double seconds, absl::Time end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "Open MPI 4.1.4"
std::string MpiVersion();

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_PROBE_H_
