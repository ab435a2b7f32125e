// The launcher's command line: launch <flags> -- <worker flags>.
#ifndef STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_
#define STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags/flag_table.h"
#include "common/security/transport_security.h"

namespace starring {

enum class LaunchSync { kLocal, kStar, kRing, kMpi };

struct LaunchOptions {
  LaunchSync sync = LaunchSync::kStar;
  std::string sync_name;  // as given
  int worker_count = 1;
  int server_count = 0;  // 0 unless star
  int restart_count = 0;
  bool check = false;        // the workers dial whom they will talk to, and end
  int cores_per_worker = 0;  // see CoreDemand
  int cores_per_server = 0;
  std::string worker_binary;
  std::string server_binary;              // star only
  std::vector<std::string> worker_flags;  // the words after "--"
  std::vector<std::string> proxies;       // star: what the workers dial instead of each server; empty: the servers
  SecurityFiles security;                 // star: of servers and workers; without job_secret the launcher makes one
  std::string make_secret;                // if not empty: write a secret there, and nothing else is set
  std::string trace;                      // --trace of every process; empty: none
  int metrics_port = -1;                  // of worker 0; the workers' follow, then the servers'; 0: free ones; -1: none
  std::chrono::seconds start_deadline{30};  // for the servers to listen
  std::chrono::seconds stop_deadline{60};   // for the workers to save and leave after a signal
};

// Every flag of the launcher.
const FlagTable& LaunchFlags();

// InvalidArgument names the flag, its value and the way out; NotFound names a binary that is not there.
absl::StatusOr<LaunchOptions> ParseLaunchOptions(int argc, const char* const* argv);

// Worker flags of a restart: the same, with --resume.
std::vector<std::string> ResumingFlags(std::vector<std::string> worker_flags);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_
