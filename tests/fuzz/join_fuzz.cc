// A sequence of JoinRequests to one server, and of leaving workers. An accepted agreement is used as a server uses it:
// the slices are cut, the learning rate is computed, and the job begins if the server has the memory.
//
// A byte comes before each request. It says whether the worker leaves, and whether the agreement gets the sizes that
// this build would round to, without which hardly any change of an agreement would get past their check.
#include <string>

#include "absl/status/status.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/bucket_map.h"
#include "proto/starring/v1/job.pb.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/door/rendezvous.h"
#include "server/shard/shard_job.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/reached.h"

namespace {

// Limits of the job that begins: 16 buckets, or a hundred workers.
constexpr int64_t kMemoryBytesMax = 4 << 20;

void RoundSizes(starring::v1::JoinRequest* request) {
  starring::v1::JobAgreement agreement;
  if (!agreement.ParseFromString(request->agreement())) return;
  const auto buckets = starring::BucketMap::Create(
      {.element_count = agreement.element_count(), .bucket_bytes = agreement.bucket_bytes()});
  if (!buckets.ok() || agreement.world_size() < 1) return;
  agreement.set_bucket_bytes(buckets->bucket_bytes());
  agreement.set_chunk_bytes(starring::ChunkBytesFor(agreement.leaf_owners().empty() ? agreement.world_size() : 1));
  request->set_agreement(agreement.SerializeAsString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  const int shard_count = 1 + input.Byte() % 4;
  const int shard = input.Byte() % shard_count;
  const std::string run_id = input.Byte() % 4 == 3 ? "a" : "";
  starring::Rendezvous rendezvous(shard, shard_count, run_id, [&](const starring::Agreement& agreement, int lanes) {
    CHECK(lanes >= 1 && lanes <= starring::kLanesMax) << lanes;
    return starring::CheckShardMemory(agreement, shard, shard_count, kMemoryBytesMax);
  });
  // More calls than a member may have, but few enough that an input is fast.
  for (int call = 0; call < 64 && !input.empty(); ++call) {
    const int kind = input.Byte();
    starring::v1::JoinRequest request;
    if (!request.ParseFromString(input.Block())) continue;
    if (kind % 8 == 0) {
      rendezvous.Leave(request.rank(), request.worker_id());
      if (!rendezvous.Joined(request.rank())) starring::Reached("left");
    } else {
      if ((kind & 8) != 0) RoundSizes(&request);
      const absl::Status status = rendezvous.Join(request);
      starring::Reached(status.ok() ? "joined" : status.ToString());
      if (status.ok()) CHECK(rendezvous.Joined(request.rank()) && rendezvous.has_workers());
    }
    if (!rendezvous.complete()) (void)rendezvous.DescribeMissing();
  }
  if (!rendezvous.has_workers()) return 0;
  if (rendezvous.complete()) starring::Reached("complete");
  const starring::Agreement& agreement = rendezvous.agreement();
  CHECK_GE(agreement.world_size, 1);
  int64_t owned = 0;
  for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
    const starring::ElementRange slice =
        starring::OwnerMap::ShardRanges(shard_count).RangeOf(agreement.buckets.sum(b), shard);
    CHECK_LE(slice.begin, slice.end);
    owned += slice.size();
  }
  CHECK_LE(owned, agreement.buckets.element_count());
  // The step after the first one must be valid too: the optimizer counts from 1.
  for (const int64_t step : {agreement.first_step, agreement.first_step + 1}) {
    (void)starring::LearningRateAt(agreement.schedule, step);
  }
  CHECK_OK(starring::ShardJob::Create({.agreement = agreement, .shard = shard, .shard_count = shard_count}).status());
  starring::Reached("job");
  return 0;
}
