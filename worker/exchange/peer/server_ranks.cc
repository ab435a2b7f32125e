#include "worker/exchange/peer/server_ranks.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/reduce/owner_map.h"
#include "common/transport/collectives.h"
#include "common/transport/shard_wire.h"

namespace starring {
namespace {

int64_t Milliseconds(absl::Duration deadline) { return absl::ToInt64Milliseconds(BoundedDeadline(deadline)); }

int ServerCount(const MessagePump& pump) { return pump.world_size() - pump.worker_count(); }

// The part of a vector of all elements that goes between rank 0 and one server, in pieces.
absl::Status TransferSlice(MessagePump& pump, Route route, std::span<float> slice, const CollectiveOptions& options) {
  while (!slice.empty()) {
    const size_t count = std::min<size_t>(slice.size(), kShardPieceElements);
    RETURN_IF_ERROR(Transfer(pump, route, std::as_writable_bytes(slice.first(count)), options));
    slice = slice.subspan(count);
  }
  return absl::OkStatus();
}

// Transfer takes a span that it may write, as one end does; the end that sends only reads.
std::span<float> Writable(std::span<const float> values) { return {const_cast<float*>(values.data()), values.size()}; }

}  // namespace

absl::Status JoinServers(MessagePump& pump, const JobSpec& job, const ServerJoin& mine) {
  std::vector<MessagePump::Token> tokens;
  for (int shard = 0; shard < ServerCount(pump); ++shard) {
    const ShardJoin join = {.shard = shard,
                            .shard_count = ServerCount(pump),
                            .shares_memory = static_cast<int16_t>(mine.shares_memory ? 1 : 0),
                            .join_deadline_ms = Milliseconds(job.join_deadline),
                            .exchange_deadline_ms = Milliseconds(job.exchange_deadline),
                            .stall_report_ms = mine.stall_report.count(),
                            .agreement_bytes = mine.agreement.size()};
    const int server = pump.worker_count() + shard;
    tokens.push_back(pump.Send(server, ControlTag::kShardJoin, std::as_bytes(std::span(&join, 1))));
    tokens.push_back(pump.Send(server, ControlTag::kShardAgreement, std::as_bytes(std::span(mine.agreement))));
  }
  return AwaitAll(pump, tokens, {.what = "joining the servers", .deadline = job.join_deadline});
}

absl::Status SendStartToServers(MessagePump& pump, const JobSpec& job, std::span<const float> parameters) {
  const CollectiveOptions start = {.what = "the servers' start", .deadline = job.join_deadline, .with_servers = true};
  std::vector<std::span<const float>> vectors = job.optimizer_state;
  // The state goes first, because a server takes none when it has a bucket's parameters.
  vectors.push_back(parameters);
  // Only rank 0 has anything to send.
  const int shards = pump.rank() == 0 ? ServerCount(pump) : 0;
  const OwnerMap owners = OwnerMap::ShardRanges(ServerCount(pump));
  const auto route = [&pump](int shard) { return Route{.from = 0, .to = pump.worker_count() + shard}; };
  for (int shard = 0; shard < shards; ++shard) {
    std::byte has_state{!job.optimizer_state.empty()};
    RETURN_IF_ERROR(Transfer(pump, route(shard), {&has_state, 1}, start));
  }
  for (int b = 0; b < job.buckets.bucket_count(); ++b) {
    for (int shard = 0; shard < shards; ++shard) {
      const ElementRange slice = owners.RangeOf(job.buckets.sum(b), shard);
      for (const std::span<const float> vector : vectors) {
        CHECK_EQ(std::ssize(vector), job.buckets.element_count());
        RETURN_IF_ERROR(TransferSlice(pump, route(shard), Writable(vector.subspan(slice.begin, slice.size())), start));
      }
    }
    if ((b + 1) % kShardStartBuckets == 0) RETURN_IF_ERROR(Barrier(pump, start));
  }
  return Barrier(pump, start);
}

absl::Status FetchStateFromServers(MessagePump& pump, const JobSpec& job, std::span<const std::span<float>> state) {
  if (pump.rank() != 0) return absl::OkStatus();
  CHECK_EQ(std::ssize(state), StateVectorCount(job.optimizer));
  const CollectiveOptions options = {.what = "gathering the optimizer's state", .deadline = job.exchange_deadline};
  const OwnerMap owners = OwnerMap::ShardRanges(ServerCount(pump));
  for (int shard = 0; shard < owners.owner_count(); ++shard) {
    const int server = pump.worker_count() + shard;
    for (int b = 0; b < job.buckets.bucket_count(); ++b) {
      const ElementRange slice = owners.RangeOf(job.buckets.sum(b), shard);
      // A server answers one request at a time: it copies its state for each.
      for (int vector = 0; vector < std::ssize(state) && slice.size() > 0; ++vector) {
        const ShardRequest request = {.kind = ShardRequest::Kind::kFetchState, .bucket = b, .vector = vector};
        const MessagePump::Token sent =
            pump.Send(server, ControlTag::kShardRequest, std::as_bytes(std::span(&request, 1)));
        RETURN_IF_ERROR(
            TransferSlice(pump, {.from = server, .to = 0}, state[vector].subspan(slice.begin, slice.size()), options));
        RETURN_IF_ERROR(AwaitAll(pump, {&sent, 1}, options));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status FinishAtServers(MessagePump& pump, const JobSpec& job) {
  std::vector<MessagePump::Token> sent, answered;
  const ShardRequest request = {.kind = ShardRequest::Kind::kFinish};
  for (int server = pump.worker_count(); server < pump.world_size(); ++server) {
    // Posted before the request leaves, so that no answer comes unexpected.
    answered.push_back(pump.Receive(server, ControlTag::kShardAnswer, 1));
    sent.push_back(pump.Send(server, ControlTag::kShardRequest, std::as_bytes(std::span(&request, 1))));
  }
  const CollectiveOptions end = {.what = "the end of the job", .deadline = job.exchange_deadline};
  RETURN_IF_ERROR(AwaitAll(pump, sent, end));
  RETURN_IF_ERROR(AwaitAll(pump, answered, end));
  for (const MessagePump::Token token : answered) (void)pump.Take(token);
  return absl::OkStatus();
}

}  // namespace starring
