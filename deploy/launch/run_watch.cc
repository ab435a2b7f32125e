#include "deploy/launch/run_watch.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace starring {
namespace {

// Several questions fit into the time after which a coordinator counts as stuck (kCoordinatorSilence).
constexpr std::chrono::milliseconds kPause(250);
constexpr std::chrono::milliseconds kPatience(500);

}  // namespace

void StuckServers::OnAnswer(const RunStatus& run, Time now) {
  seen_[0] = now;
  if (run.generation == 0) return;  // servers are still coming
  // Shard 0 is the coordinator, which has just answered.
  for (int shard = 1; shard < shard_count_; ++shard) {
    if (std::ranges::count(run.missing_shards, shard) == 0) {
      seen_[shard] = now;
      missing_once_.erase(shard);
    } else if (seen_.contains(shard) && !missing_once_.insert(shard).second) {
      Add(shard);
    }
  }
}

void StuckServers::OnSilence(Time now) {
  // A coordinator that comes back does not know the others at first.
  std::erase_if(seen_, [](const auto& one) { return one.first > 0; });
  // A coordinator that has never answered may still be starting.
  if (!seen_.contains(0) || now - seen_[0] <= coordinator_silence_) return;
  coordinator_silence_ *= 2;
  Add(0);
}

void StuckServers::Add(int shard) {
  stuck_.push_back({.shard = shard, .seen = seen_[shard]});
  seen_.erase(shard);
  missing_once_.erase(shard);
}

RunWatch::RunWatch(const std::string& coordinator, TransportSecurity security, int shard_count)
    : client_(coordinator, std::move(security)), servers_(shard_count), thread_([this] { Run(); }) {}

RunWatch::~RunWatch() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::vector<StuckServer> RunWatch::Take() {
  const MutexLock lock(mutex_);
  return servers_.Take();
}

void RunWatch::Run() {
  while (true) {
    // The question may take kPatience, so it is asked without the lock.
    const absl::StatusOr<RunStatus> run = client_.Ask(kPatience);
    const auto now = std::chrono::steady_clock::now();
    const MutexLock lock(mutex_);
    if (run.ok()) {
      servers_.OnAnswer(*run, now);
    } else {
      servers_.OnSilence(now);
    }
    const bool stops =
        changed_.WaitFor(mutex_, kPause, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
    if (stops) return;
  }
}

}  // namespace starring
