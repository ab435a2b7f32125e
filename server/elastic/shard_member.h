// A shard's part in an elastic run: attends at the coordinator, keeps the shard's snapshots, and hands the orders to
// the server, which obeys them on its own thread.
//
// A server whose thread hangs, for instance in a file system that does not answer, must not pass for one that works. So
// reports stop when Tick has not been called for too long: for `stuck`, or for the time that a slow disk needs for the
// thread's reads, whichever is longer. The coordinator then gives the shard up as a silent one.
//
// Thread safety: the server's polling thread makes all calls.
#ifndef STARRING_SERVER_ELASTIC_SHARD_MEMBER_H_
#define STARRING_SERVER_ELASTIC_SHARD_MEMBER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/job/job_spec.h"
#include "common/security/transport_security.h"
#include "common/wire/member_link.h"
#include "proto/starring/v1/coordinator.pb.h"
#include "server/elastic/snapshot_store.h"

namespace starring {

class ShardMember {
 public:
  struct Options {
    int shard = 0;
    int shard_count = 1;
    std::string coordinator;  // host:port
    std::string address;      // where workers reach this shard
    std::string run_id;
    std::string state_dir;  // for snapshots; empty: they are in memory alone
    bool flush_state = false;
    std::chrono::milliseconds stuck{10'000};
    TransportSecurity security;
    std::function<void(const std::string&)> log;
  };
  explicit ShardMember(Options options);
  ~ShardMember();

  // Takes the coordinator's orders since the last call, oldest first. The end of the link comes as an END order.
  std::vector<v1::MemberOrder> TakeOrders();

  // Learns the run's terms; the first call opens the snapshots. Errors as SnapshotStore::Open and ParseAgreement.
  absl::Status Learn(const v1::RunTerms& terms);
  bool has_learned() const { return snapshots_ != nullptr; }
  // REQUIRES: Learn was OK.
  SnapshotStore& snapshots() { return *snapshots_; }
  const v1::RunTerms& terms() const { return terms_; }
  // The agreement of the terms; its world_size is 1.
  const Agreement& agreement() const { return agreement_; }

  // All lanes of generations below `number` are cut.
  void SetPrepared(int64_t number);
  void SetServing(int64_t generation);
  // `late`: the ranks that the trouble is about, as far as this shard knows them.
  void SetTrouble(const std::string& text, const std::vector<int>& late = {});
  // The ranks of the generation that have never joined here, while others have.
  void SetUnjoined(const std::vector<int>& ranks);
  // ShardJob::counted of the generation that is served. Reported with the snapshots of Tick.
  void SetCounted(const std::map<int64_t, int64_t>& counted);
  // How many workers this shard can take: for how many contributions to a bucket it has memory, and for how many
  // workers descriptors.
  struct Room {
    int64_t contributions = 0;
    int64_t workers = 0;
  };
  void SetRoom(const Room& room);
  void SetFinished();
  // Call often: reports the snapshots, and that the server's thread works.
  void Tick();

  // How long the coordinator has been out of reach.
  absl::Duration disconnected_for() const { return absl::FromChrono(link_->disconnected_for()); }
  std::string link_trouble() const { return link_->trouble(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Fill(v1::MemberReport* report, bool is_first) const;
  // Whether the server's thread works; for the link.
  bool Works() const;
  // The thread may read so many bytes between two calls of Tick.
  void MayRead(int64_t bytes);

  const Options options_;
  const uint64_t member_id_;
  v1::RunTerms terms_;
  Agreement agreement_;
  std::unique_ptr<SnapshotStore> snapshots_;
  mutable Mutex mutex_;
  v1::MemberReport::Shard report_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> counted_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::MemberOrder> orders_ ABSL_GUARDED_BY(mutex_);
  int64_t told_to_serve_ ABSL_GUARDED_BY(mutex_) = 0;  // the last generation that was ordered
  Clock::time_point ticked_ ABSL_GUARDED_BY(mutex_) = Clock::now();
  Clock::duration patience_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<MemberLink> link_;  // last: its thread uses the members above
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_SHARD_MEMBER_H_
