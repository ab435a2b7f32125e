#include "worker/exchange/peer/dedicated_machine.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/transport/shard_wire.h"

namespace starring {
namespace {

// An operation is the send of a contribution, or the receive of a server's answer.
uint64_t SendOf(int bucket) { return static_cast<uint64_t>(bucket); }
uint64_t AnswerOf(int bucket, int shard) { return static_cast<uint64_t>(shard + 1) << 32 | SendOf(bucket); }
int BucketOf(uint64_t operation) { return static_cast<int>(operation & std::numeric_limits<uint32_t>::max()); }
std::optional<int> AnsweringShard(uint64_t operation) {
  const int number = static_cast<int>(operation >> 32);
  return number == 0 ? std::nullopt : std::optional(number - 1);
}

}  // namespace

DedicatedMachine::DedicatedMachine(const Options& options)
    : buckets_(*options.buckets),
      parameters_(options.parameters),
      transport_(*options.transport),
      server_count_(options.server_count),
      owners_(OwnerMap::ShardRanges(server_count_)),
      track_(options.track),
      first_tag_(options.first_tag),
      servers_(options.server_count),
      missing_(buckets_.bucket_count(), 0),
      submitted_ns_(track_ == nullptr ? 0 : buckets_.bucket_count(), 0) {
  CHECK_EQ(buckets_.element_count(), parameters_.size());
  CHECK_GE(server_count_, 1);
  CHECK_LT(server_count_, transport_.world_size());
  CHECK_LE(ParametersTag(first_tag_, buckets_.bucket_count()), transport_.tag_max());
}

void DedicatedMachine::Submit(int64_t step, int bucket, std::span<const float> gradient) {
  if (missing_[bucket] == 0) Begin(step, bucket);
  Send(bucket, gradient, Awaits::kParameters);
  Complete(bucket);
}

void DedicatedMachine::SubmitNode(int64_t step, int bucket, int node, std::span<const float> gradient) {
  if (node == 0) Begin(step, bucket);
  Send(bucket, gradient, Awaits::kNothing);
}

// The bucket is in flight until Submit, too, when nothing of it is under way: hence one operation more.
void DedicatedMachine::Begin(int64_t step, int bucket) {
  CHECK_EQ(missing_[bucket], 0) << "bucket " << bucket << " submitted twice without Await";
  submitted_.push_back({.step = step, .bucket = bucket});
  if (track_ != nullptr) submitted_ns_[bucket] = TraceNow();
  missing_[bucket] = 1;
}

void DedicatedMachine::Send(int bucket, std::span<const float> gradient, Awaits awaits) {
  const ElementRange range = buckets_.bucket(bucket);
  CHECK_EQ(gradient.size(), range.size());
  const int worker_count = transport_.world_size() - server_count_;
  for (int i = 0; i < server_count_; ++i) {
    const int shard = (transport_.rank() + i) % server_count_;
    const ElementRange slice = owners_.RangeOf(buckets_.sum(bucket), shard);
    // A short bucket may have nothing for some servers, which then expect nothing.
    if (slice.size() == 0) continue;
    const Contribution contribution = {
        .bucket = bucket, .bytes = std::as_bytes(gradient.subspan(slice.begin - range.begin, slice.size()))};
    ++missing_[bucket];
    counters_.bytes_sent += std::ssize(contribution.bytes);
    if (awaits == Awaits::kNothing) {
      Post(shard, contribution);
      continue;
    }
    const auto answer = std::as_writable_bytes(parameters_.subspan(slice.begin, slice.size()));
    ++missing_[bucket];
    counters_.bytes_received += std::ssize(answer);
    transport_.PostReceive(worker_count + shard, ParametersTag(first_tag_, bucket), answer,
                           {.poster = this, .operation = AnswerOf(bucket, shard)});
    servers_[shard].waiting.push_back(contribution);
    SendWaiting(shard);
  }
}

void DedicatedMachine::SendWaiting(int shard) {
  Server& server = servers_[shard];
  while (!server.waiting.empty() && server.unanswered < kShardSlicesMax) {
    const Contribution contribution = server.waiting.front();
    server.waiting.pop_front();
    ++server.unanswered;
    Post(shard, contribution);
  }
}

void DedicatedMachine::Post(int shard, const Contribution& contribution) {
  const int server = transport_.world_size() - server_count_ + shard;
  transport_.PostSend(server, GradientTag(first_tag_, contribution.bucket), contribution.bytes,
                      {.poster = this, .operation = SendOf(contribution.bucket)});
}

void DedicatedMachine::OnCompletion(uint64_t operation) {
  if (const std::optional<int> shard = AnsweringShard(operation); shard.has_value()) {
    --servers_[*shard].unanswered;
    SendWaiting(*shard);
  }
  Complete(BucketOf(operation));
}

void DedicatedMachine::Complete(int bucket) {
  CHECK_GT(missing_[bucket], 0);
  if (--missing_[bucket] > 0) return;
  // Buckets may become ready in any order.
  const auto found =
      std::find_if(submitted_.begin(), submitted_.end(), [&](const InFlight& s) { return s.bucket == bucket; });
  CHECK(found != submitted_.end());
  if (track_ != nullptr) {
    track_->Add({.name = "exchange",
                 .kind = TraceEvent::Kind::kFlight,
                 .begin_ns = submitted_ns_[bucket],
                 .end_ns = TraceNow(),
                 .labels = {.step = found->step, .bucket = bucket}});
  }
  submitted_.erase(found);
}

BucketMachine::InFlight DedicatedMachine::Oldest() const {
  CHECK(!submitted_.empty());
  return submitted_.front();
}

}  // namespace starring
