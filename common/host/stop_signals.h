// The signals that ask a program to save and stop: alike for workers, servers and the launcher.
#ifndef STARRING_COMMON_HOST_STOP_SIGNALS_H_
#define STARRING_COMMON_HOST_STOP_SIGNALS_H_

#include <vector>

namespace starring {

// Whether this process was started with SIGHUP ignored, as nohup does. REQUIRES: no handler of SIGHUP is installed.
[[nodiscard]] bool IgnoresHangUp();

// SIGINT (Ctrl-C), SIGTERM (service managers), SIGUSR1 (Slurm before its time limit, and mpirun, which passes it on),
// and SIGHUP (a terminal or ssh that ends), unless IgnoresHangUp. REQUIRES: as IgnoresHangUp.
std::vector<int> StopSignals();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_STOP_SIGNALS_H_
