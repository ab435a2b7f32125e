#include "worker/exchange/star/star_client.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error_origin.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "common/network/address.h"
#include "common/network/congestion_control.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

// Deadlines and lanes that are down are checked this often.
constexpr std::chrono::milliseconds kTick(50);
// The same while gRPC holds the payload of an answered request: there is no event when it lets go, and the trainer may
// be waiting for its memory.
constexpr std::chrono::milliseconds kDrainTick(1);
// The exchange thread pauses this long between visits while the trainer computes: the shorter while answers come, and
// twice as long after each visit that found none. A visit costs some 5 us of a core. While the trainer drives, pauses
// double up to kTick: the trainer ends a longer one than these when it has driven.
constexpr std::chrono::microseconds kPauseMin(40);
constexpr std::chrono::microseconds kPauseMax(320);
// The trainer itself sends requests whose payloads have no more than this together: copying them to a socket takes less
// time than waking the exchange thread.
constexpr int64_t kSentAtOnceBytesMax = 64 << 10;
// How long to wait until all shards have been told that this worker gives up.
constexpr std::chrono::seconds kAbortPatience(1);
constexpr std::chrono::seconds kClosePatience(5);

}  // namespace

StarClient::StarClient(const JobSpec& job, Options options)
    : options_(std::move(options)),
      rank_(job.rank),
      world_size_(job.world_size),
      exchange_deadline_(absl::ToChronoMilliseconds(BoundedDeadline(job.exchange_deadline))),
      pending_(static_cast<size_t>(job.buckets.bucket_count() - StarRequest::kSnapshot)),
      watches_(options_.shards.size(), ServerWatch(options_.stall.times)),
      report_(options_.stall.say) {
  for (size_t s = 0; s < options_.shards.size(); ++s) {
    const Shard& shard = options_.shards[s];
    lanes_.emplace_back();
    for (size_t l = 0; l < shard.lanes.size(); ++l) {
      lanes_.back().push_back(std::make_unique<Lane>(Lane::Options{
          .channel = shard.lanes[l],
          .queue = &queue_,
          .rank = rank_,
          .shard = static_cast<int>(s),
          .lane = static_cast<int>(l),
          .job_id = shard.job_id,
          .slices_max = std::max<int>(kShardSlicesMax / static_cast<int>(shard.lanes.size()), 1),
          .track =
              AddTrack(options_.trace, {.name = absl::StrCat("exchange: lane ", l, ", server ", s), .peer = "shard"}),
          .on_answer = [this](std::unique_ptr<StarRequest> request)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { OnAnswer(std::move(request)); },
          .fill_progress = [this](v1::Progress* progress)
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { SetProgress(MyWork(Clock::now()), progress); },
          .on_note = [this, s](const v1::ExchangeMessage& note)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { OnNote(static_cast<int>(s), note); },
          .on_failure =
              [this, s](const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                // A shard that misses no rank does not fail by itself: at its deadline it would blame a rank that has
                // left for this reason. The coordinator tells the shards of an elastic run.
                Fail(absl::Status(why.code(), absl::StrCat("server ", options_.shards[s].address, ": ",
                                                           std::string(why.message()))),
                     options_.superseded == nullptr ? Tell::kShards : Tell::kNobody);
              }}));
    }
  }
  next_tick_ = Clock::now() + kTick;
  Tick(Clock::now());  // opens the lanes
  // This comes last, because the thread uses every member.
  thread_ = std::thread([this] { DriveInBackground(); });
}

// Says first that it wants the mutex, so that the exchange thread does not take it again between two events.
class ABSL_SCOPED_LOCKABLE StarClient::TrainerDrives {
 public:
  explicit TrainerDrives(StarClient& client) ABSL_EXCLUSIVE_LOCK_FUNCTION(client.mutex_) : client_(client) {
    client_.trainer_drives_.store(true, std::memory_order_relaxed);
    client_.mutex_.Lock();
  }
  ~TrainerDrives() ABSL_UNLOCK_FUNCTION() {
    // Not relaxed: the thread says that it rests and then looks whether the trainer drives. One of the two sees the
    // other.
    client_.trainer_drives_.store(false);
    const bool is_needed = client_.in_flight_ > 0 && client_.thread_rests_.load();
    client_.mutex_.Unlock();
    if (!is_needed) return;
    const MutexLock lock(client_.inbox_mutex_);
    client_.WakeThread();
  }

 private:
  StarClient& client_;
};

StarClient::~StarClient() {
  {
    TrainerDrives drive(*this);
    TakeInbox();
    Fail(absl::CancelledError("the exchange is being destroyed"), Tell::kNobody);
    CloseLanes(Lane::Urgency::kNow);
    DriveUntil([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return AllLanesClosed() && draining_.empty(); });
  }
  {
    const MutexLock lock(inbox_mutex_);
    stopping_ = true;
    posted_.NotifyOne();
  }
  thread_.join();
  // gRPC requires that a queue is drained before it is destroyed. No lane has an event left in it.
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

void StarClient::Post(std::vector<std::unique_ptr<StarRequest>> requests) {
  int64_t bytes = 0;
  for (const std::unique_ptr<StarRequest>& request : requests) {
    ++Pending(request->group);
    if (!request->fields.shared()) bytes += std::ssize(request->payload);
  }
  {
    // The requests to all shards take one lock and one wake-up.
    const MutexLock lock(inbox_mutex_);
    std::ranges::move(requests, std::back_inserter(inbox_));
    if (bytes > kSentAtOnceBytesMax) WakeThread();
  }
  if (bytes > kSentAtOnceBytesMax) return;
  TrainerDrives drive(*this);
  // gRPC takes a lane's next message when it has reported the end of the one before.
  while (Drive(Clock::time_point())) {
  }
  TakeInbox();
  // A full lane sends no more before it has been answered, and the trainer does not look for answers while it computes.
  const auto is_full = [](const auto& shard) {
    return std::ranges::any_of(shard, [](const auto& lane) { return lane->has_waiting(); });
  };
  if (std::ranges::none_of(lanes_, is_full)) return;
  const MutexLock lock(inbox_mutex_);
  WakeThread();
}

void StarClient::WakeThread() {
  is_wanted_ = true;
  if (std::exchange(thread_sleeps_, false)) posted_.NotifyOne();
}

absl::Status StarClient::Wait(int group) {
  // The acquire pairs with the release in EndDrained: what the answers brought may be read.
  if (Pending(group).load(std::memory_order_acquire) == 0 && !has_failed_) return absl::OkStatus();
  TrainerDrives drive(*this);
  // This is for the stall report only.
  waiting_since_ns_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  DriveUntil([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Pending(group) == 0 || !status_.ok(); });
  waiting_since_ns_.store(0, std::memory_order_relaxed);
  return status_;
}

void StarClient::Abort(const absl::Status& why) {
  TrainerDrives drive(*this);
  TakeInbox();
  Fail(why, Tell::kShards);
  DriveUntil([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return AllLanesClosed(); },
             Clock::now() + kAbortPatience);
}

void StarClient::Close() {
  TrainerDrives drive(*this);
  WatchServers(Clock::now());  // prints that a stall is over if it has just ended
  CloseLanes(Lane::Urgency::kOrderly);
  DriveUntil([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return AllLanesClosed(); },
             Clock::now() + kClosePatience);
}

void StarClient::DriveUntil(absl::FunctionRef<bool()> done, Clock::time_point end) {
  TakeInbox();
  while (!done() && Clock::now() < end) {
    Clock::time_point until = std::min(next_tick_, end);
    if (!draining_.empty()) until = std::min(until, Clock::now() + kDrainTick);
    Drive(until);
  }
}

bool StarClient::Drive(Clock::time_point until) {
  const auto wait = std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
  void* tag;
  bool ok;
  // Without the mutex only one thread, the trainer's, ever waits for events. If two threads did, one of them could
  // sleep on after the other one has handled what it waited for.
  const auto deadline = std::chrono::system_clock::now() + wait;
  grpc::CompletionQueue::NextStatus event;
  if (wait.count() > 0) {
    mutex_.Unlock();
    event = queue_.AsyncNext(&tag, &ok, deadline);
    mutex_.Lock();
  } else {
    event = queue_.AsyncNext(&tag, &ok, deadline);
  }
  if (event == grpc::CompletionQueue::GOT_EVENT) static_cast<CompletionTag*>(tag)->Run(ok);
  // The clock is looked at after every event, and not only when there is none: deadlines count on a busy thread, too.
  const Clock::time_point now = Clock::now();
  EndDrained();
  if (now >= next_tick_) {
    next_tick_ = now + kTick;
    Tick(now);
  }
  return event == grpc::CompletionQueue::GOT_EVENT;
}

void StarClient::DriveInBackground() {
  // Linux lengthens sleeps by up to 50 us by default, more than kPauseMin. A failure of this call costs only time.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  std::chrono::microseconds pause = kPauseMin;
  bool is_idle = false;
  while (true) {
    {
      const MutexLock lock(inbox_mutex_);
      thread_rests_ = !is_idle && pause > kPauseMax;
      if (!is_idle && !trainer_drives_.load()) pause = std::min(pause, kPauseMax);
      thread_sleeps_ = !is_wanted_ && !stopping_;
      if (thread_sleeps_) posted_.WaitFor(inbox_mutex_, is_idle ? kTick : pause);
      thread_sleeps_ = thread_rests_ = false;
      if (stopping_) return;
      pause = std::exchange(is_wanted_, false) || is_idle ? kPauseMin
                                                          : std::min<std::chrono::microseconds>(2 * pause, kTick);
    }
    is_idle = false;
    // A thread that waits for the mutex costs the trainer a system call when it unlocks.
    if (trainer_drives_.load(std::memory_order_relaxed)) continue;
    const MutexLock lock(mutex_);
    TakeInbox();
    // Only a driver that waits lets go of the mutex: this loop never does, and then no event is handled while the
    // trainer waits for it.
    while (!trainer_drives_.load(std::memory_order_relaxed) && Drive(Clock::time_point())) pause = kPauseMin;
    is_idle = IsIdle();
  }
}

void StarClient::TakeInbox() {
  std::vector<std::unique_ptr<StarRequest>> requests;
  {
    const MutexLock lock(inbox_mutex_);
    requests.swap(inbox_);
  }
  for (std::unique_ptr<StarRequest>& request : requests) {
    if (closing_) break;  // the exchange has failed, and the trainer will be told so
    ++in_flight_;
    Lane& lane = *lanes_[request->shard][request->lane];
    lane.Post(std::move(request));
  }
}

void StarClient::Tick(Clock::time_point now) {
  const Clock::duration stopped = running_clock_.stopped();
  (void)running_clock_.Read(now);
  const Clock::duration stop = running_clock_.stopped() - stopped;
  std::set<std::string> new_peers;
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) {
      if (stop > Clock::duration::zero()) lane->OnStopped(stop, now);
      lane->Tick(now);
      if (lane->TakeNewConnection()) new_peers.insert(lane->peer());
    }
  }
  if (!new_peers.empty()) AvoidBbrTo(new_peers);  // gRPC opens its sockets itself
  if (!failure_.has_value() && options_.superseded != nullptr && options_.superseded()) {
    // Nobody waits for what is in flight, and a server that is gone would never take it.
    Fail(absl::UnavailableError("the generation is over"), Tell::kNobody);
    CloseLanes(Lane::Urgency::kNow);
    CutConnections();
  } else if (!failure_.has_value()) {
    TellProgress(now);
    WatchServers(now);
    CheckDeadlines(now);
  } else if (now - failed_at_ > kAbortPatience) {
    // The servers have been told, or do not listen.
    CloseLanes(Lane::Urgency::kNow);
    if (!draining_.empty()) CutConnections();
  }
}

void StarClient::OnAnswer(std::unique_ptr<StarRequest> request) { draining_.push_back(std::move(request)); }

bool StarClient::IsIdle() const { return in_flight_ == 0 && (!closing_ || AllLanesClosed()); }

void StarClient::Fail(const absl::Status& why, Tell tell) {
  if (failure_.has_value()) return;
  failure_ =
      OriginOf(why).kind == ErrorOrigin::Kind::kProcess ? WithOrigin(why, {.kind = ErrorOrigin::Kind::kExchange}) : why;
  failed_at_ = Clock::now();
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) {
      // First the requests are taken back: from here on no lane writes to the trainer's memory or repeats a payload.
      for (std::unique_ptr<StarRequest>& request : lane->TakeRequests()) draining_.push_back(std::move(request));
    }
    if (tell == Tell::kNobody) continue;
    // Each shard gets one message, and tells all workers (ShardJob::Fail). On a lane without a connection it would be
    // late. If all are without, the first may be about to get its own.
    const auto open = std::find_if(shard.begin(), shard.end(), [](const auto& lane) { return lane->open(); });
    (open != shard.end() ? *open : shard.front())->PostAbort(why);
  }
  CloseLanes(Lane::Urgency::kOrderly);
}

void StarClient::CloseLanes(Lane::Urgency urgency) {
  closing_ = true;
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) lane->Close(urgency);
  }
}

// A server that no longer reads leaves payloads in gRPC's writes, and those outlive their streams: gRPC 1.51 closes a
// connection only when its write is over, and the kernel gives up only after TCP_USER_TIMEOUT, 20 s. Meanwhile the
// trainer waits for its memory. Cutting the connections ends the writes at once.
void StarClient::CutConnections() {
  std::set<std::string> peers;
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) peers.insert(lane->peer());
  }
  CutConnectionsTo(peers, options_.others);
}

bool StarClient::AllLanesClosed() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& shard) {
    return std::all_of(shard.begin(), shard.end(), [](const auto& lane) { return lane->closed(); });
  });
}

void StarClient::EndDrained() {
  if (draining_.empty() && !failure_.has_value()) return;
  const auto in_use = [](const std::unique_ptr<StarRequest>& request) { return request->payload_use.use_count() > 1; };
  const auto drained = std::partition(draining_.begin(), draining_.end(), in_use);
  if (drained == draining_.end() && !failure_.has_value()) return;
  // After a failure a request may be over without an answer. It must not count as over before the failure is published,
  // or Wait would return OK. So nothing ends until gRPC has let go of every payload.
  if (drained != draining_.begin() && failure_.has_value()) return;
  // Pairs with gRPC's release of the last slice: gRPC's reads of the payload happen before the trainer's next writes.
  std::atomic_thread_fence(std::memory_order_acquire);
  UpdateCounters();
  // Before the requests end: a Wait that sees the last of them end also sees why.
  if (failure_.has_value() && status_.ok()) {
    status_ = *failure_;
    has_failed_ = true;
  }
  for (auto request = drained; request != draining_.end(); ++request) {
    Pending((*request)->group).fetch_sub(1, std::memory_order_release);
    --in_flight_;
  }
  draining_.erase(drained, draining_.end());
}

void StarClient::UpdateCounters() {
  int64_t sent = 0;
  int64_t received = 0;
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) {
      sent += lane->payload_bytes_sent();
      received += lane->payload_bytes_received();
    }
  }
  payload_bytes_sent_ = sent;
  payload_bytes_received_ = received;
}

}  // namespace starring
