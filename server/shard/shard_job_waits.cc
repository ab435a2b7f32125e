// Names the workers that keep a job waiting: deadlines, the stall report, and the answer to GetStatus.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/shard/shard_job.h"

namespace starring {

using v1::ExchangeMessage;

namespace {

// "60 s", "0.5 s".
std::string TextOf(std::chrono::milliseconds duration) { return absl::StrCat(duration.count() / 1000.0, " s"); }

}  // namespace

// StallWatch counts the question even if there is no lane to send it on. So a worker without a connection becomes
// silent like one that does not answer.
void ShardJob::AskProgress(int rank) {
  const std::set<int>& lanes = workers_[rank].lanes_open;
  if (lanes.empty()) return;
  ExchangeMessage question;
  question.set_kind(ExchangeMessage::ASK_PROGRESS);
  // Any open lane will do: a worker answers questions ahead of requests that wait (Lane::WriteNext).
  Send({rank, *lanes.begin()}, std::move(question));
}

void ShardJob::TellStall(int rank, const std::string& text) {
  const std::set<int>& lanes = workers_[rank].lanes_open;
  if (lanes.empty()) return;
  ExchangeMessage stall;
  stall.set_kind(ExchangeMessage::STALL);
  stall.set_text(text);
  Send({rank, *lanes.begin()}, std::move(stall));
}

std::string ShardJob::DescribeOldestWait() const {
  // A worker that waits for something newer waits, indirectly, for the oldest thing, too.
  const CollectiveWait* oldest = nullptr;
  std::string text;
  const auto consider = [&](const CollectiveWait& wait, absl::FunctionRef<std::string()> describe) {
    // Nobody is missing in a bucket that is being summed.
    if (wait.empty() || wait.complete() || (oldest != nullptr && oldest->since() <= wait.since())) return;
    oldest = &wait;
    text = describe();
  };
  // This looks at every bucket. Only a job from which nothing has arrived for a while pays for it
  // (StallWatch::IsQuiet).
  for (int b = 0; b < static_cast<int>(slices_.size()); ++b) {
    // Without parameters no contribution is taken. So a wait that is not empty has a step before it, and `describe` is
    // called only then.
    const CollectiveWait& gradients = sums_.wait(b);
    consider(gradients, [&] {
      return absl::StrCat(gradients.DescribeMissing(), " not contributed bucket ", b, " of step ",
                          sums_.Parameters(b)->step() + 1);
    });
    consider(fetches_[b], [&] { return absl::StrCat("rank 0 has not sent the initial parameters of bucket ", b); });
  }
  consider(sum_.wait(),
           [&] { return absl::StrCat(sum_.wait().DescribeMissing(), " not joined in sum ", sum_.number()); });
  // After the orderly end these entries stay, all of them, and no worker waits for anything.
  consider(finish_wait_, [&] { return absl::StrCat(finish_wait_.DescribeMissing(), " not finished"); });
  return text;
}

void ShardJob::CheckDeadlines(Time now) {
  // The polling thread calls this ten times a second (kTick in server_core.cc), also while messages keep coming.
  if (state_ == State::kRunning && stall_.IsQuiet(now)) stall_.Look(DescribeOldestWait(), now);
  for (int b = 0; b < static_cast<int>(slices_.size()); ++b) {
    FailIfLate(sums_.wait(b), now, [&] {
      return absl::StrCat("not contributed bucket ", b, " of step ", sums_.Parameters(b)->step() + 1);
    });
    // All workers that wait for initial parameters wait for rank 0. The list of those that have not asked yet would
    // name the wrong ones.
    const CollectiveWait& fetches = fetches_[b];
    if (!fetches.empty() && now - fetches.since() > options_.exchange_deadline) {
      Fail(absl::DeadlineExceededError(absl::StrCat("rank 0 has not sent the initial parameters of bucket ", b,
                                                    " within ", Deadline(), stall_.DescribeRoot(now))),
           {0});
    }
  }
  FailIfLate(sum_.wait(), now, [&] { return absl::StrCat("not joined in sum ", sum_.number()); });
  if (state_ != State::kRunning) return;
  // This comes after the look at state_: finish_wait_ keeps its entries after the end, to answer repeats, and is never
  // late then.
  FailIfLate(finish_wait_, now, [] { return "not finished"; });
  for (int rank = 0; rank < world_size() && state_ == State::kRunning; ++rank) {
    // A worker may open its lanes again at any time, so a broken connection alone ends nothing.
    const Worker& worker = workers_[rank];
    // Before its first lane, a worker's alone_since is in the future: it may still be joining at the other shards,
    // which the join deadline bounds.
    if (!worker.lanes_open.empty() || now <= worker.alone_since + options_.exchange_deadline) continue;
    // A worker that has never connected was given both deadlines, one after the other.
    const std::string waited =
        worker.has_connected
            ? absl::StrCat("it has had no connection to shard ", options_.shard, " for ", Deadline())
            : absl::StrCat("it has opened no connection to shard ", options_.shard, " within ",
                           TextOf(options_.join_deadline + options_.exchange_deadline), ", the join deadline of ",
                           TextOf(options_.join_deadline), " and the exchange deadline of ", Deadline());
    Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " is gone: ", waited)), {rank});
  }
}

void ShardJob::FailIfLate(const CollectiveWait& wait, Time now, absl::FunctionRef<std::string()> not_done) {
  if (state_ != State::kRunning || wait.empty() || wait.complete() || now - wait.since() <= options_.exchange_deadline)
    return;
  // A late worker without a connection has probably died, which tells the reader more than that it is late.
  std::vector<int> late, gone;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (wait.Has(rank)) continue;
    late.push_back(rank);
    if (workers_[rank].lanes_open.empty()) gone.push_back(rank);
  }
  std::string also;
  if (!gone.empty()) {
    also = absl::StrCat(", ", NameRanks(gone), gone.size() == 1 ? " has" : " have", " no connection to shard ",
                        options_.shard, " any more");
  }
  Fail(absl::DeadlineExceededError(absl::StrCat(wait.DescribeMissing(), " ", not_done(), " within ", Deadline(), also,
                                                stall_.DescribeRoot(now))),
       std::move(late));
}

std::string ShardJob::Deadline() const { return TextOf(options_.exchange_deadline); }

void ShardJob::Describe(v1::GetStatusReply* reply) const {
  reply->set_state(state_ == State::kRunning    ? v1::GetStatusReply::RUNNING
                   : state_ == State::kFinished ? v1::GetStatusReply::FINISHED
                                                : v1::GetStatusReply::FAILED);
  reply->set_message(std::string(status_.message()));
  reply->set_world_size(world_size());
  reply->set_first_step(options_.agreement.first_step);
  reply->set_steps_complete(sums_.steps_complete());
  reply->set_bytes_received(bytes_received_);
  reply->set_bytes_sent(bytes_sent_);
  for (int rank = 0; rank < world_size(); ++rank) {
    v1::GetStatusReply::Worker* worker = reply->add_workers();
    worker->set_rank(rank);
    // There is a ShardJob only when all workers have joined.
    worker->set_joined(true);
    worker->set_lanes_open(static_cast<int>(workers_[rank].lanes_open.size()));
    worker->set_finished(finish_wait_.Has(rank));
    worker->set_contributions(workers_[rank].contributions);
    // The number is kept up to date as contributions arrive: GetStatus runs on the thread that sums, and must not walk
    // over all workers and buckets.
    worker->set_buckets_missing(sums_.BucketsMissing(rank));
  }
}

}  // namespace starring
