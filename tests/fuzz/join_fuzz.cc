// A sequence of JoinRequests to one server, and of workers that leave. An agreement that is taken is used as a server
// uses it: its slices are cut and its learning rate is asked for.
#include <string>

#include "common/check.h"
#include "common/learning_rate.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/rendezvous.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  const int shard_count = 1 + input.Byte() % 4;
  const int shard = input.Byte() % shard_count;
  starring::Rendezvous rendezvous(shard, shard_count);
  // More calls than a member may have, and fewer than make a single input slow.
  for (int call = 0; call < 64 && !input.empty(); ++call) {
    const int kind = input.Byte();
    starring::v1::JoinRequest request;
    if (!request.ParseFromString(input.Block())) continue;
    if (kind % 8 == 0) {
      rendezvous.Leave(request.rank(), request.worker_id());
    } else if (rendezvous.Join(request).ok()) {
      CHECK(rendezvous.Joined(request.rank()));
      CHECK(rendezvous.anybody());
    }
    if (!rendezvous.complete()) (void)rendezvous.DescribeMissing();
  }
  if (!rendezvous.anybody()) return 0;
  const starring::Agreement& agreement = rendezvous.agreement();
  CHECK_GE(agreement.world_size, 1);
  int64_t owned = 0;
  for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
    const starring::ElementRange slice = agreement.buckets.ShardSlice(b, shard, shard_count);
    CHECK_LE(slice.begin, slice.end);
    owned += slice.size();
  }
  CHECK_LE(owned, agreement.buckets.element_count());
  // The step after the first must be a step still: the optimizer counts from 1.
  for (const int64_t step : {agreement.first_step, agreement.first_step + 1}) {
    (void)starring::LearningRateAt(agreement.schedule, step);
  }
  return 0;
}
