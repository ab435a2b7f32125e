#include "server/elastic/shard_member.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/reduce/owner_map.h"
#include "common/security/sha256.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

// A hard disk, or a file system at the other end of a link of 1 Gbit/s. All else that takes long is faster: memory for
// a job is zeroed, and a bucket is summed, at some GB/s.
constexpr double kReadBytesPerSecondMin = 1e8;

}  // namespace

ShardMember::ShardMember(Options options)
    : options_(std::move(options)), member_id_(DrawNonce()), patience_(options_.stuck) {
  report_.set_shard(options_.shard);
  report_.set_address(options_.address);
  link_ = std::make_unique<MemberLink>(
      // The link's thread calls these. The server's thread takes the orders later, by TakeOrders.
      MemberLink::Options{.coordinator = options_.coordinator,
                          .security = options_.security,
                          .report = [this](v1::MemberReport* report, bool is_first) { Fill(report, is_first); },
                          .on_order =
                              [this](const v1::MemberOrder& order) {
                                const MutexLock lock(mutex_);
                                // An order is repeated if its effect is not known in time. A generation that begins
                                // twice would lose its workers and snapshots.
                                const bool serves = order.kind() == v1::MemberOrder::SERVE;
                                if (serves && std::exchange(told_to_serve_, order.number()) == order.number()) return;
                                orders_.push_back(order);
                              },
                          .on_refused =
                              [this](const absl::Status& why) {
                                v1::MemberOrder end;
                                end.set_kind(v1::MemberOrder::END);
                                end.set_code(static_cast<int>(why.code()));
                                end.set_text(std::string(why.message()));
                                const MutexLock lock(mutex_);
                                orders_.push_back(end);
                              },
                          .works = [this] { return Works(); }});
}

ShardMember::~ShardMember() = default;

void ShardMember::Fill(v1::MemberReport* report, bool is_first) const {
  if (is_first) {
    v1::MemberReport::Hello* const hello = report->mutable_hello();
    hello->set_wire_version(kWireVersion);
    hello->set_member_id(member_id_);
    hello->set_name(absl::StrCat("server ", options_.shard, " (process ", getpid(), " at ", options_.address, ")"));
    hello->set_shard_count(options_.shard_count);
    hello->set_run_id(options_.run_id);
  }
  const MutexLock lock(mutex_);
  *report->mutable_shard() = report_;
}

bool ShardMember::Works() const {
  const MutexLock lock(mutex_);
  return Clock::now() - ticked_ <= patience_;
}

void ShardMember::MayRead(int64_t bytes) {
  const std::chrono::duration<double> seconds(static_cast<double>(bytes) / kReadBytesPerSecondMin);
  const MutexLock lock(mutex_);
  patience_ = std::max<Clock::duration>(options_.stuck, std::chrono::duration_cast<Clock::duration>(seconds));
}

std::vector<v1::MemberOrder> ShardMember::TakeOrders() {
  const MutexLock lock(mutex_);
  return std::exchange(orders_, {});
}

absl::Status ShardMember::Learn(const v1::RunTerms& terms) {
  if (snapshots_ != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Agreement agreement, ParseAgreement(terms.agreement()), "the run's terms");
  const int vector_count = StateVectorCount(agreement.optimizer);
  int64_t snapshot_bytes = 0;
  std::vector<int64_t> slice_elements;
  const OwnerMap owners = OwnerMap::ShardRanges(options_.shard_count);
  for (int b = 0; b < agreement.buckets.bucket_count(); ++b) {
    slice_elements.push_back(owners.RangeOf(agreement.buckets.sum(b), options_.shard).size());
    snapshot_bytes += slice_elements.back() * (1 + vector_count) * static_cast<int64_t>(sizeof(float));
  }
  MayRead(SnapshotStore::kFilesMax * snapshot_bytes);  // those of earlier processes
  ASSIGN_OR_RETURN(snapshots_,
                   SnapshotStore::Open({.folder = options_.state_dir,
                                        .shard = options_.shard,
                                        .shard_count = options_.shard_count,
                                        .job = Sha256Hex(absl::StrCat(options_.run_id, "\n", terms.agreement())),
                                        .slice_elements = std::move(slice_elements),
                                        .vector_count = vector_count,
                                        .has_side_values = options_.shard == 0,
                                        .flush = options_.flush_state,
                                        .log = options_.log}));
  Tick();
  // The one that a generation begins with is read, and written to the job's memory.
  MayRead(2 * snapshot_bytes);
  terms_ = terms;
  agreement_ = agreement;
  return absl::OkStatus();
}

void ShardMember::SetPrepared(int64_t number) {
  // The coordinator chooses the next first step from the report with `prepared`, which therefore needs the newest
  // snapshots.
  Tick();
  {
    const MutexLock lock(mutex_);
    report_.set_prepared(number);
  }
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
}

void ShardMember::SetServing(int64_t generation) {
  const MutexLock lock(mutex_);
  report_.set_generation(generation);
  report_.clear_trouble();
  report_.clear_late();
  report_.clear_unjoined();
  report_.set_finished(false);
  // Those after the generation's first step are about to be dropped. Tick tells the others.
  report_.clear_held();
  report_.clear_counted();
  report_.clear_durable();
  counted_.clear();
}

void ShardMember::SetUnjoined(const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  report_.mutable_unjoined()->Assign(ranks.begin(), ranks.end());
}

void ShardMember::SetCounted(const std::map<int64_t, int64_t>& counted) {
  const MutexLock lock(mutex_);
  counted_ = counted;
}

void ShardMember::SetRoom(const Room& room) {
  const MutexLock lock(mutex_);
  // A run needs one; if there is no room for it, its Join is refused with the numbers.
  report_.set_contributions_max(std::max<int64_t>(room.contributions, 1));
  report_.set_workers_max(std::max<int64_t>(room.workers, 1));
}

void ShardMember::SetTrouble(const std::string& text, const std::vector<int>& late) {
  {
    const MutexLock lock(mutex_);
    // Later troubles of a generation follow from the first.
    if (!report_.trouble().empty()) return;
    report_.set_trouble(text);
    report_.mutable_late()->Assign(late.begin(), late.end());
  }
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
}

void ShardMember::SetFinished() {
  {
    const MutexLock lock(mutex_);
    if (report_.finished()) return;
  }
  Tick();  // what counts before the last snapshot
  {
    const MutexLock lock(mutex_);
    report_.set_finished(true);
  }
  link_->ReportSoon(MemberLink::Then::kAwaitsOrder);
}

void ShardMember::Tick() {
  // The store may unlink files here, which takes time, so the lock that reports need comes later.
  std::vector<int64_t> durable, held;
  if (snapshots_ != nullptr) {
    durable = snapshots_->durable();
    held = snapshots_->held();
  }
  const MutexLock lock(mutex_);
  ticked_ = Clock::now();
  report_.mutable_held()->Assign(held.begin(), held.end());
  report_.clear_counted();
  for (const int64_t step : held) {
    const auto counted = counted_.find(step);
    // -1 says that the generation has no count of this snapshot, which is older than it.
    report_.add_counted(counted == counted_.end() ? -1 : counted->second);
  }
  report_.mutable_durable()->Assign(durable.begin(), durable.end());
}

}  // namespace starring
