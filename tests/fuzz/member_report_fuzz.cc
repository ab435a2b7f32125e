// Members report to the coordinator of an elastic run in any order: processes attend, report, lose their connection and
// come back, also as another member. The orders must be ones that members can obey.
#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "proto/starring/v1/coordinator.pb.h"
#include "server/elastic/coordinator.h"
#include "server/elastic/generation_log.h"
#include "server/elastic/member_report.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/reached.h"

namespace starring {
namespace {

constexpr int64_t kEndStep = 1000;
// Some texts in one: the causes of three failures, and names.
constexpr size_t kOrderTextBytesMax = 4 * (kStatusTextBytesMax + kMemberNameBytesMax) + 1024;

void CheckOrder(const Order& order, int leaves, int shard_count) {
  constexpr std::array kKinds = {"prepare", "serve", "train", "stop",     "cut",
                                 "reach",   "wait",  "keep",  "given up", "end"};
  Reached(std::string(kKinds.at(static_cast<size_t>(order.kind))) + " " + order.end.ToString());
  CHECK_LE(order.text.size(), kOrderTextBytesMax);
  CHECK_LE(order.end.message().size(), kOrderTextBytesMax);
  if (order.kind != Order::Kind::kTrain) return;
  const Generation& generation = order.generation;
  CHECK(generation.first_step >= 0 && generation.first_step <= kStepMax) << generation.first_step;
  CHECK_GE(generation.snapshot_every, 1);
  CHECK_EQ(std::ssize(order.shards), shard_count);
  CHECK_EQ(std::ssize(generation.leaf_owners), leaves);
  const std::set<int> owners(generation.leaf_owners.begin(), generation.leaf_owners.end());
  CHECK_EQ(owners.size(), generation.workers.size());
  CHECK(*owners.begin() == 0 && *owners.rbegin() + 1 == std::ssize(owners));
}

}  // namespace
}  // namespace starring

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using starring::v1::MemberReport;
  starring::SilenceProtobuf();
  static starring::MemoryFolder folder;  // the log flushes each line to the disk
  starring::FuzzInput input(data, size);
  const int shard_count = 1 + input.Byte() % 2;
  const int leaves = 1 + input.Byte() % 8;
  auto log = starring::GenerationLog::Open(folder.Emptied(), {.name = "fuzz", .leaves = leaves, .shards = shard_count});
  CHECK_OK(log);
  starring::Coordinator::Time now{std::chrono::hours(1)};
  // By member, the number of the last kReach. An input knows no such number: a report that has reached 1 obeys it.
  std::map<uint64_t, int64_t> reach_asked;
  const auto send = [&](uint64_t id, const starring::Order& order) {
    starring::CheckOrder(order, leaves, shard_count);
    if (order.kind == starring::Order::Kind::kReach) reach_asked[id] = order.generation.number;
  };
  starring::Coordinator coordinator(starring::Coordinator::Options{.shard_count = shard_count,
                                                                   .leaves = leaves,
                                                                   .end_step = starring::kEndStep,
                                                                   .first_workers = 1 + input.Byte() % 2,
                                                                   .log = log->get(),
                                                                   .send = send,
                                                                   .now = now});
  for (int call = 0; call < 64 && !input.empty(); ++call) {
    const int kind = input.Byte() % 8;
    const uint64_t id = 1 + input.Byte() % 4;
    if (kind < 2) {
      MemberReport::Shard proto;
      if (!proto.ParseFromString(input.Block())) continue;
      const auto report = starring::ReadShardReport(proto, shard_count);
      starring::Reached(report.status().ToString());
      if (!report.ok()) continue;
      if (kind == 0) (void)coordinator.AddShard(id, "shard", *report, now);
      coordinator.OnShard(id, *report, now);
    } else if (kind < 4) {
      MemberReport::Worker proto;
      if (!proto.ParseFromString(input.Block())) continue;
      if (proto.reached() == 1) proto.set_reached(reach_asked[id]);
      const auto report = starring::ReadWorkerReport(proto);
      starring::Reached(report.status().ToString());
      if (!report.ok()) continue;
      if (kind == 2) (void)coordinator.AddWorker(id, "worker", *report, now);
      coordinator.OnWorker(id, *report, now);
    } else if (kind == 4) {
      coordinator.OnDisconnect(id, now);
    } else if (kind == 5) {
      coordinator.EndRun(now);
    } else {
      // Long enough that members are given up, and short enough that this process seems to have run.
      for (int tick = input.Byte() % 64; tick >= 0; --tick) coordinator.Tick(now += std::chrono::milliseconds(400));
    }
    const starring::Coordinator::Status status = coordinator.Describe();
    CHECK_LE(status.members.size(), 4);
    CHECK_LE(status.missing_shards.size(), static_cast<size_t>(shard_count));
  }
  return 0;
}
