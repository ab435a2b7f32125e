// Reads the reports of an elastic run's members from their messages. Every field is checked here, because it comes from
// another process: the coordinator computes with the numbers, and passes the texts on to all members.
//
// Thread safety: pure functions.
#ifndef STARRING_SERVER_ELASTIC_MEMBER_REPORT_H_
#define STARRING_SERVER_ELASTIC_MEMBER_REPORT_H_

#include "absl/status/statusor.h"
#include "proto/starring/v1/coordinator.pb.h"
#include "server/elastic/coordinator.h"

namespace starring {

// InvalidArgument, with the field, if a number is out of its range or an address is too long. Texts are cut to
// kStatusTextBytesMax. If there are more than kSnapshotsReportedMax snapshots, the oldest one and the newest ones
// count.
absl::StatusOr<ShardReport> ReadShardReport(const v1::MemberReport::Shard& proto, int shard_count);
absl::StatusOr<WorkerReport> ReadWorkerReport(const v1::MemberReport::Worker& proto);

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_MEMBER_REPORT_H_
