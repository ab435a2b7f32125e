// Progress, stalls and deadlines: what StarClient knows of its servers and tells them.
#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "common/network/address.h"
#include "common/wire/exchange_message.h"
#include "worker/exchange/star/star_client.h"

namespace starring {
namespace {

// When the deadline has passed, the server names the missing ranks. Only if that message does not come does this side
// give up with a message that knows less.
constexpr std::chrono::seconds kVerdictGrace(2);
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
      const ErrorOrigin of_server = {.kind = ErrorOrigin::Kind::kServer, .number = request->shard};
      // Without a connection no verdict can come from the server, so there is no grace.
      if (!lane->connection().ok() && age > exchange_deadline_) {
        const absl::Status why = absl::UnavailableError(
            absl::StrCat(server, " cannot be reached for ", deadline, ", ", DescribeRequest(request->fields),
                         " of rank ", rank_, " is not answered: ", std::string(lane->connection().message())));
        Fail(WithOrigin(why, of_server), Tell::kShards);
      } else if (age > exchange_deadline_ + kVerdictGrace) {
        const bool is_silent = watches_[request->shard].IsUnanswered(now);
        const absl::Status why = absl::DeadlineExceededError(
            absl::StrCat(server, " has not answered ", DescribeRequest(request->fields), " of rank ", rank_, " within ",
                         deadline, is_silent ? ", and does not answer at all" : ""));
        Fail(is_silent ? WithOrigin(why, of_server) : why, Tell::kShards);
      }
    }
  }
}

void StarClient::OnNote(int shard, const v1::ExchangeMessage& note) {
  // HERE needs nothing more: the lane has counted it as a sign of life.
  if (note.kind() != v1::ExchangeMessage::STALL) return;
  const auto now = Clock::now();
  if (note.text().empty()) {
    report_.Close(shard, now);
  } else {
    // The server reports a stall when it has lasted this long.
    report_.Open(shard, now - options_.stall.times.report_after, note.text());
  }
}

}  // namespace starring
