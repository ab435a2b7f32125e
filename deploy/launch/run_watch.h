// Watches an elastic job's coordinator for servers that live and do not answer. The run waits for such a server, and
// only the launcher that has started it can end it and start it again.
//
// Thread safety: any thread may call any method; the watch has a thread of its own.
#ifndef STARRING_DEPLOY_LAUNCH_RUN_WATCH_H_
#define STARRING_DEPLOY_LAUNCH_RUN_WATCH_H_

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/security/transport_security.h"
#include "common/wire/run_client.h"

namespace starring {

// A server that was there, and does not answer any more.
struct StuckServer {
  int shard = 0;
  std::chrono::steady_clock::time_point seen;  // there; a process that was started later is another one
};

// Which servers are stuck, from what the coordinator has answered and when. Knows no clock and no gRPC.
class StuckServers {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // A coordinator that answers nothing for so long is stuck, the next time for twice as long: it may read a snapshot
  // from a slow disk, and would do so again whenever it is started. It gives up the other servers itself, after
  // --member_silent_s.
  static constexpr std::chrono::seconds kCoordinatorSilence{5};

  explicit StuckServers(int shard_count) : shard_count_(shard_count) {}

  void OnAnswer(const RunStatus& run, Time now);
  void OnSilence(Time now);
  // Each once.
  std::vector<StuckServer> Take() { return std::exchange(stuck_, {}); }

 private:
  void Add(int shard);

  const int shard_count_;
  Time::duration coordinator_silence_ = kCoordinatorSilence;
  std::map<int, Time> seen_;    // by shard, when it was there last
  std::set<int> missing_once_;  // a connection that broke is soon made again: twice is stuck
  std::vector<StuckServer> stuck_;
};

class RunWatch {
 public:
  RunWatch(const std::string& coordinator, TransportSecurity security, int shard_count);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // Those that were found since the last call.
  std::vector<StuckServer> Take();

 private:
  void Run();

  RunClient client_;
  Mutex mutex_;
  ConditionVariable changed_;
  StuckServers servers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_RUN_WATCH_H_
