#include "worker/exchange/star/star_client.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/host/address.h"
#include "common/steady_time.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

// The exchange thread checks deadlines and lanes that are down this often.
constexpr std::chrono::milliseconds kTick(50);
// The same while gRPC holds the payload of an answered request: there is no event when it lets go, and the trainer may
// be waiting for its memory.
constexpr std::chrono::milliseconds kDrainTick(1);
// When the deadline has passed, the server names the missing ranks. Only if that message does not come does this side
// give up with a message that knows less.
constexpr std::chrono::seconds kVerdictGrace(2);
// How long to wait until all shards have been told that this worker gives up.
constexpr std::chrono::seconds kAbortPatience(1);
constexpr std::chrono::seconds kClosePatience(5);
// A worker tells the servers its progress at most this often, and less often if there are many workers: a server gets
// at most 250 such messages a second.
constexpr std::chrono::milliseconds kTellInterval(250);
constexpr std::chrono::milliseconds kTellIntervalPerWorker(4);

std::string DescribeRequest(const v1::ExchangeMessage& fields) {
  switch (fields.kind()) {
    case v1::ExchangeMessage::GRADIENT:
      return absl::StrCat("bucket ", fields.bucket(), " of step ", fields.step());
    case v1::ExchangeMessage::SUM:
      return absl::StrCat("sum ", fields.step());
    case v1::ExchangeMessage::FINISH:
      return "the end of the job";
    default:
      return absl::StrCat(v1::ExchangeMessage::Kind_Name(fields.kind()), " of bucket ", fields.bucket());
  }
}

}  // namespace

StarClient::StarClient(const JobSpec& job, Options options)
    : options_(std::move(options)),
      rank_(job.rank),
      world_size_(job.world_size),
      exchange_deadline_(absl::ToChronoMilliseconds(BoundedDeadline(job.exchange_deadline))),
      watches_(options_.shards.size(), ServerWatch(options_.stall.times)),
      report_(options_.stall.say),
      pending_(static_cast<size_t>(1 + job.buckets.bucket_count()), 0) {
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
          .track =
              AddTrack(options_.trace, {.name = absl::StrCat("exchange: lane ", l, ", server ", s), .peer = "shard"}),
          .on_answer = [this](std::unique_ptr<StarRequest> request) { OnAnswer(std::move(request)); },
          .fill_progress = [this](v1::Progress* progress) { SetProgress(MyWork(Clock::now()), progress); },
          .on_note =
              [this, s](const v1::ExchangeMessage& note) {
                // HERE needs nothing more: the lane has counted it as a sign of life.
                if (note.kind() != v1::ExchangeMessage::STALL) return;
                const auto now = Clock::now();
                if (note.text().empty()) {
                  report_.Close(static_cast<int>(s), now);
                } else {
                  // The server reports a stall when it has lasted this long.
                  report_.Open(static_cast<int>(s), now - options_.stall.times.report_after, note.text());
                }
              },
          .on_failure =
              [this, s](const absl::Status& why) {
                Fail(absl::Status(why.code(), absl::StrCat("server ", options_.shards[s].address, ": ",
                                                           std::string(why.message()))),
                     Tell::kNobody);
              }}));
    }
  }
  // This comes last, because the thread uses every member.
  thread_ = std::thread([this] { Run(); });
}

StarClient::~StarClient() {
  {
    const MutexLock lock(mutex_);
    stop_asked_ = true;
    Wake();
  }
  thread_.join();
}

void StarClient::Post(std::vector<std::unique_ptr<StarRequest>> requests) {
  const MutexLock lock(mutex_);
  // The requests to all shards take one lock and one wake-up.
  for (std::unique_ptr<StarRequest>& request : requests) {
    ++Pending(request->group);
    inbox_.push_back(std::move(request));
  }
  Wake();
}

absl::Status StarClient::Wait(int group) {
  const MutexLock lock(mutex_);
  if (Pending(group) == 0) return status_;
  awaited_ = group;
  // This is for the stall report only. The exchange thread infers nothing about other memory from it, so relaxed order
  // is enough.
  waiting_since_ns_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Pending(group) == 0 || !status_.ok(); });
  waiting_since_ns_.store(0, std::memory_order_relaxed);
  awaited_.reset();
  return status_;
}

void StarClient::Abort(const absl::Status& why) {
  const MutexLock lock(mutex_);
  abort_asked_ = why;
  Wake();
  changed_.WaitFor(mutex_, kAbortPatience, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lanes_closed_; });
}

void StarClient::Close() {
  const MutexLock lock(mutex_);
  close_asked_ = true;
  Wake();
  changed_.WaitFor(mutex_, kClosePatience, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lanes_closed_; });
}

void StarClient::Wake() {
  // One alarm is enough for all that is in the inbox when it fires.
  if (std::exchange(wake_set_, true)) return;
  // The time is in the past: gRPC would round "now" up to the next millisecond and wait for it.
  alarm_.Set(&queue_, std::chrono::system_clock::time_point(), &wake_tag_);
}

void StarClient::Run() {
  // This opens the lanes at once.
  Tick(Clock::now());
  Clock::time_point next_tick = Clock::now() + kTick;
  while (true) {
    auto wait = std::chrono::duration_cast<std::chrono::microseconds>(next_tick - Clock::now());
    if (!draining_.empty()) wait = std::min<std::chrono::microseconds>(wait, kDrainTick);
    void* tag;
    bool ok;
    const auto event = queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + wait);
    if (event == grpc::CompletionQueue::SHUTDOWN) return;
    if (event == grpc::CompletionQueue::GOT_EVENT) static_cast<CompletionTag*>(tag)->Run(ok);
    // The clock is looked at after every event, and not only when there is none: deadlines count on a busy thread, too.
    const Clock::time_point now = Clock::now();
    EndDrained();
    if (now >= next_tick) {
      next_tick = now + kTick;
      Tick(now);
    }
    UpdateCounters();
    if (!closing_ || !AllLanesClosed()) continue;
    const MutexLock lock(mutex_);
    if (!std::exchange(lanes_closed_, true)) changed_.NotifyAll();
    // No alarm may be set after the shutdown. None will be: only the destructor asks to stop, and it is the last call.
    if (stop_asked_ && !wake_set_ && draining_.empty()) queue_.Shutdown();
  }
}

void StarClient::TakeInbox() {
  // The inbox is emptied first: a lane's Post calls gRPC, and the trainer must not wait for that when it posts the next
  // bucket.
  std::vector<std::unique_ptr<StarRequest>> requests;
  std::optional<absl::Status> abort;
  bool close;
  bool stop;
  {
    const MutexLock lock(mutex_);
    wake_set_ = false;
    requests.swap(inbox_);
    abort.swap(abort_asked_);
    close = close_asked_;
    stop = stop_asked_;
  }
  for (std::unique_ptr<StarRequest>& request : requests) {
    if (closing_) break;  // the exchange has failed, and the trainer will be told so
    Lane& lane = *lanes_[request->shard][request->lane];
    lane.Post(std::move(request));
  }
  if (abort.has_value()) Fail(*abort, Tell::kShards);
  if (close) {
    WatchServers(Clock::now());  // prints that a stall is over if it has just ended
    CloseLanes(Lane::Urgency::kOrderly);
  }
  if (stop) {
    Fail(absl::CancelledError("the exchange is being destroyed"), Tell::kNobody);
    CloseLanes(Lane::Urgency::kNow);
  }
}

void StarClient::Tick(Clock::time_point now) {
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) lane->Tick(now);
  }
  if (!failure_.has_value()) {
    TellProgress(now);
    WatchServers(now);
    CheckDeadlines(now);
  } else if (now - failed_at_ > kAbortPatience) {
    // The servers have been told, or do not listen.
    CloseLanes(Lane::Urgency::kNow);
    if (!draining_.empty()) CutConnections();
  }
}

// A worker that waits is in the exchange, whatever its phase says: an evaluation waits in a sum, too.
WorkState StarClient::MyWork(Clock::time_point now) const {
  WorkState work = options_.stall.progress == nullptr ? WorkState() : options_.stall.progress->Read(now);
  if (const int64_t since_ns = waiting_since_ns_.load(std::memory_order_relaxed); since_ns != 0) {
    work.phase = WorkPhase::kExchange;
    work.age =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - Clock::time_point(Clock::duration(since_ns)));
  }
  for (size_t s = 0; s < watches_.size(); ++s) {
    if (watches_[s].IsUnanswered(now)) work.silent_shard = static_cast<int>(s);
  }
  return work;
}

void StarClient::TellProgress(Clock::time_point now) {
  if (!options_.stall.times.enabled() || now < next_tell_) return;
  next_tell_ = now + std::max(kTellInterval, world_size_ * kTellIntervalPerWorker);
  const WorkState work = MyWork(now);
  // A worker whose progress has not changed sends nothing: messages to a stopped process would pile up.
  const std::pair<WorkPhase, int64_t> news(work.phase, work.step);
  if (std::exchange(last_told_, news) == news) return;
  // Every shard finds the root of a stall by itself, so each is told. One lane of it is enough.
  for (const auto& shard : lanes_) shard[0]->PostProgress(Lane::Asks::kNothing);
}

void StarClient::WatchServers(Clock::time_point now) {
  for (int s = 0; s < static_cast<int>(lanes_.size()); ++s) {
    // A shard is judged by all its lanes together: one may wait for another worker's gradient while the others carry
    // answers.
    ServerWatch::Seen seen;
    const StarRequest* oldest = nullptr;
    for (const auto& lane : lanes_[s]) {
      seen.signs_of_life += lane->signs_of_life();
      const StarRequest* const request = lane->oldest();
      if (request != nullptr && (oldest == nullptr || request->since < oldest->since)) oldest = request;
    }
    if (oldest != nullptr) seen.waiting_since = oldest->since;
    const int source = s + static_cast<int>(lanes_.size());
    switch (watches_[s].Look(seen, now)) {
      case ServerWatch::Action::kNone:
        break;
      case ServerWatch::Action::kAsk:
        lanes_[s][0]->PostProgress(Lane::Asks::kServer);
        break;
      case ServerWatch::Action::kSilent:
        // `oldest` is set: a server is called silent only while a request waits for it.
        report_.Open(source, watches_[s].quiet_since(),
                     StallSentence(now - watches_[s].quiet_since(), DescribeRequest(oldest->fields),
                                   DescribeSilence(s, *oldest, now)));
        break;
      case ServerWatch::Action::kAnswers:
        report_.Close(source, now);
        break;
    }
  }
}

std::string StarClient::DescribeSilence(int shard, const StarRequest& request, Clock::time_point now) const {
  const std::string server = absl::StrCat("server ", options_.shards[shard].address, " (shard ", shard, ")");
  const absl::Status& connection = lanes_[shard][request.lane]->connection();
  if (!connection.ok()) {
    return absl::StrCat(server, " cannot be reached: ", std::string(connection.message()));
  }
  return absl::StrCat(server, " does not answer: last heard ", SecondsText(now - watches_[shard].quiet_since()),
                      " ago");
}

void StarClient::CheckDeadlines(Clock::time_point now) {
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) {
      const StarRequest* request = lane->oldest();
      if (request == nullptr || failure_.has_value()) continue;
      const auto age = now - request->since;
      const std::string server =
          absl::StrCat("server ", options_.shards[request->shard].address, " (shard ", request->shard, ")");
      const std::string deadline = absl::StrCat(exchange_deadline_.count() / 1000.0, " s");
      // Without a connection no verdict can come from the server, so there is no grace.
      if (!lane->connection().ok() && age > exchange_deadline_) {
        Fail(absl::UnavailableError(absl::StrCat(server, " cannot be reached for ", deadline, ", ",
                                                 DescribeRequest(request->fields), " of rank ", rank_,
                                                 " is not answered: ", std::string(lane->connection().message()))),
             Tell::kShards);
      } else if (age > exchange_deadline_ + kVerdictGrace) {
        Fail(absl::DeadlineExceededError(absl::StrCat(
                 server, " has not answered ", DescribeRequest(request->fields), " of rank ", rank_, " within ",
                 deadline, watches_[request->shard].IsUnanswered(now) ? ", and does not answer at all" : "")),
             Tell::kShards);
      }
    }
  }
}

void StarClient::OnAnswer(std::unique_ptr<StarRequest> request) { draining_.push_back(std::move(request)); }

void StarClient::Fail(const absl::Status& why, Tell tell) {
  if (failure_.has_value()) return;
  failure_ = why;
  failed_at_ = Clock::now();
  for (const auto& shard : lanes_) {
    for (const auto& lane : shard) {
      // First the requests are taken back: from here on no lane writes to the trainer's memory or repeats a payload.
      for (std::unique_ptr<StarRequest>& request : lane->TakeRequests()) draining_.push_back(std::move(request));
    }
    if (tell == Tell::kNobody) continue;
    // Each shard gets one message, and tells all workers (ShardJob::Fail). On a lane without a connection it would be
    // late.
    const auto open = std::find_if(shard.begin(), shard.end(), [](const auto& lane) { return lane->open(); });
    if (open != shard.end()) (*open)->PostAbort(why);
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
  for (const std::string& peer : peers) CutConnectionsTo(peer);
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
  const MutexLock lock(mutex_);
  for (auto request = drained; request != draining_.end(); ++request) {
    const int group = (*request)->group;
    if (--Pending(group) == 0 && awaited_ == group) changed_.NotifyAll();
  }
  draining_.erase(drained, draining_.end());
  if (failure_.has_value() && draining_.empty() && status_.ok()) {
    status_ = *failure_;
    changed_.NotifyAll();
  }
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
