// The coordinator with members that are played, and a clock that is set.
#include "server/elastic/coordinator.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/leaf_shares.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Order::Kind;

constexpr uint64_t kShardIds = 1000;

std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/coordinator.XXXXXX");
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// What goes wrong once, at the order with this number; the first one is 0. After each write to the log comes an order.
struct Fault {
  enum class Kind {
    kOrderIsLost,
    kCoordinatorDiesBefore,   // and has written to the log what comes before the order
    kCoordinatorDiesWriting,  // likewise, and the last line of that was cut off
    kCoordinatorDiesAfter,
    kShardDies,   // the one that would get the order, or another
    kWorkerDies,  // likewise
  };
  Kind kind = Kind::kOrderIsLost;
  int64_t order = -1;  // none
};

struct RunSetup {
  int shards = 1;
  int leaves = 8;
  int first_workers = 2;
  int min_workers = 1;
  int64_t first_step = 0;
  MemberTimes times = {};
  milliseconds start_deadline{60'000};
  milliseconds waited{0};
  Fault fault = {};
  std::string folder;  // empty: a new one
};

template <typename Members>
std::vector<uint64_t> IdsOf(const Members& members) {
  std::vector<uint64_t> ids;
  for (const auto& [id, member] : members) ids.push_back(id);
  return ids;
}

// The members' part of the protocol. Workers end a generation when they are told to, or when their shards have. The
// coordinator is a part of shard 0's process, and dies with it.
class Play {
 public:
  explicit Play(const RunSetup& setup) : fault(setup.fault), setup_(setup) {
    if (setup_.folder.empty()) setup_.folder = NewFolder();
    StartCoordinator();
    for (int shard = 0; shard < setup_.shards; ++shard) {
      EXPECT_TRUE(AddShard(shard, kShardIds + static_cast<uint64_t>(shard)).ok());
    }
  }

  void StartCoordinator() {
    coordinator_.reset();
    log_.reset();
    auto log = GenerationLog::Open(
        setup_.folder,
        {.name = "play", .leaves = setup_.leaves, .shards = setup_.shards, .first_step = setup_.first_step});
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    coordinator_ = std::make_unique<Coordinator>(
        Coordinator::Options{.shard_count = setup_.shards,
                             .leaves = setup_.leaves,
                             .first_step = log_->first_step(),
                             .end_step = 1000,
                             .first_workers = setup_.first_workers,
                             .min_workers = setup_.min_workers,
                             .times = setup_.times,
                             .start_deadline = setup_.start_deadline,
                             .waited = setup_.waited,
                             .log = log_.get(),
                             .send = [this](uint64_t member, const Order& order) { Send(member, order); },
                             .say = [this](const std::string& line) { said.push_back(line); },
                             .now = now});
  }

  absl::Status AddShard(int shard, uint64_t id) {
    shards[id] = {.shard = shard, .address = absl::StrCat("host:", id)};
    const absl::Status status = Attend(id);
    if (!status.ok()) shards.erase(id);
    return status;
  }
  // A process takes the place of a shard's that is dead, and finds its files.
  void RestartShard(int shard) {
    const uint64_t id = next_id_++;
    shards[id] = {
        .shard = shard, .address = absl::StrCat("host:", id), .held = files_[shard], .durable = files_[shard]};
    EXPECT_TRUE(Attend(id).ok());
  }
  void AddWorker(uint64_t id) {
    workers[id].ready = true;
    EXPECT_TRUE(coordinator_->AddWorker(id, absl::StrCat("worker ", id), workers[id], now).ok());
    Obey();
  }
  void Tell(uint64_t id) {
    if (shards.contains(id)) {
      coordinator_->OnShard(id, shards[id], now);
    } else {
      coordinator_->OnWorker(id, workers[id], now);
    }
    Obey();
  }
  // Its process is dead.
  void Kill(uint64_t id) {
    Die(id);
    Obey();
  }
  // All members go on with what they do.
  void Pass(milliseconds time) {
    for (const auto end = now + time; now < end;) {
      now += milliseconds(100);
      for (auto& [id, worker] : workers) {
        if (silent.contains(id)) continue;
        if (!worker.ready && !stuck.contains(id) && !hung.contains(id)) ++worker.leaf_count;
        coordinator_->OnWorker(id, worker, now);
      }
      for (auto& [id, shard] : shards) {
        if (!silent.contains(id)) coordinator_->OnShard(id, shard, now);
      }
      coordinator_->Tick(now);
      Obey();
    }
  }
  // A step on which there is a snapshot is over.
  void Snapshot(int64_t step, bool is_durable = true) {
    for (auto& [id, shard] : shards) {
      shard.held.push_back(step);
      if (is_durable) shard.durable.push_back(step);
    }
    TellAll(shards);
  }
  // All workers have finished the run.
  void Finish() {
    for (auto& [id, shard] : shards) shard.finished = true;
    TellAll(shards);
  }

  // A generation is what all its members do.
  bool Runs() const {
    if (!log_->last().has_value() || coordinator_->Describe().changing) return false;
    const int64_t number = log_->last()->number;
    const auto serves = [&](const auto& shard) { return shard.second.generation == number; };
    const auto trains = [&](uint64_t id) {
      const auto found = workers.find(id);
      return found != workers.end() && found->second.generation == number && !found->second.ready;
    };
    return std::ssize(shards) == setup_.shards && std::ranges::all_of(shards, serves) &&
           std::ranges::all_of(log_->last()->workers, trains);
  }
  // What is dead is started again, and who has ended its part and wants to leave does.
  void Recover() {
    for (const uint64_t id : IdsOf(workers)) {
      if (workers.contains(id) && workers[id].leaves && workers[id].ready && !silent.contains(id)) Kill(id);
    }
    for (int number = 0; number < setup_.shards; ++number) {
      const auto is_it = [&](const auto& shard) { return shard.second.shard == number; };
      if (std::ranges::none_of(shards, is_it)) RestartShard(number);
    }
    if (workers.empty()) AddWorker(next_id_++);
  }
  // The generation comes to a snapshot, where it ends if one of its workers was told to stop. REQUIRES: Runs().
  void Step(bool is_durable = true) {
    newest_step = std::max(newest_step, last().first_step) + 10;
    Snapshot(newest_step, is_durable);
    const auto is_told = [this](uint64_t id) { return told_to_stop_.contains(id); };
    if (!Runs() || std::ranges::none_of(last().workers, is_told)) return;
    for (const uint64_t id : last().workers) {
      workers[id].ready = true;
      workers[id].computes = false;
    }
    TellAll(workers);
  }
  // Goes on until `is_done`, but not so long that the run would end because a member is missing.
  bool GoesOnUntil(const std::function<bool()>& is_done) {
    for (int round = 0; round < 80; ++round) {
      if (is_done()) return true;
      Pass(milliseconds(600));
      Recover();
      if (Runs()) Step();
    }
    return is_done();
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(LogPath()).rdbuf();
    return text.str();
  }

  int64_t generation() const { return log_->last().has_value() ? log_->last()->number : 0; }
  const Generation& last() const { return *log_->last(); }
  int64_t counted_end() const { return log_->counted_end(); }
  Coordinator& coordinator() { return *coordinator_; }
  int64_t OrdersTo(uint64_t id, Kind kind) { return std::ranges::count(KindsTo(id), kind); }
  std::vector<Kind> KindsTo(uint64_t id) {
    std::vector<Kind> kinds;
    for (const auto& [member, order] : history) {
      if (member == id) kinds.push_back(order.kind);
    }
    return kinds;
  }

  Coordinator::Time now{std::chrono::hours(1)};
  std::map<uint64_t, WorkerReport> workers;
  std::map<uint64_t, ShardReport> shards;
  std::set<uint64_t> silent, stuck;
  std::set<uint64_t> hung;       // as stuck, and do not end a generation that is cut
  std::set<uint64_t> unreached;  // orders to them are lost
  std::vector<std::pair<uint64_t, Order>> history;
  std::vector<std::string> said;
  bool obedient = true;
  Fault fault;
  int64_t sent = 0;         // orders
  int64_t newest_step = 0;  // of which Step has made a snapshot

 private:
  struct Sent {
    uint64_t member;
    Order order;
    bool fails;
  };

  std::string LogPath() const { return setup_.folder + "/generations.log"; }

  void Send(uint64_t member, const Order& order) {
    if (log_at_death_.has_value()) return;  // by the dead
    const bool fails = sent++ == fault.order;
    const auto logged_before = std::exchange(logged_, std::filesystem::file_size(LogPath()));
    const bool dies_writing = fault.kind == Fault::Kind::kCoordinatorDiesWriting;
    const bool dies_first = fault.kind == Fault::Kind::kCoordinatorDiesBefore || dies_writing;
    if (fails && (dies_first || fault.kind == Fault::Kind::kCoordinatorDiesAfter)) {
      log_at_death_ = Log();
      // What an order has followed is on the disk.
      if (dies_writing && logged_ > logged_before) log_at_death_->resize(logged_ - 10);
    }
    if (fails && (dies_first || fault.kind == Fault::Kind::kOrderIsLost)) return;
    orders_.push_back({.member = member, .order = order, .fails = fails});
  }
  // The call in which the coordinator died has gone on to its end. Its orders were not sent, and what it has written
  // since is taken out of the log.
  void StartAgainIfDead() {
    if (!log_at_death_.has_value()) return;
    std::ofstream(LogPath(), std::ios::trunc) << *log_at_death_;
    // A run that has ended is not begun again: the service tells whoever comes.
    if (GenerationLog::Peek(setup_.folder, "play") == GenerationLog::Progress::kEnded) return;
    log_at_death_.reset();
    fault.order = -1;
    StartCoordinator();
    for (auto& [id, worker] : workers) {
      if (silent.contains(id) || worker.ready) continue;
      worker.ready = true;
      worker.computes = false;
      worker.trouble = "server: the connection was lost";
    }
    for (const uint64_t id : IdsOf(shards)) {
      if (shards[id].shard > 0) {
        EXPECT_TRUE(Attend(id).ok());
        continue;
      }
      files_[0] = shards[id].durable;
      shards.erase(id);
      RestartShard(0);
    }
    for (const uint64_t id : IdsOf(workers)) {
      if (!silent.contains(id)) AddWorker(id);
    }
  }

  absl::Status Attend(uint64_t id) {
    const absl::Status status = coordinator_->AddShard(id, absl::StrCat("server ", shards[id].shard), shards[id], now);
    Obey();
    return status;
  }
  void Die(uint64_t id) {
    if (shards.contains(id)) files_[shards[id].shard] = shards[id].durable;
    shards.erase(id);
    workers.erase(id);
    coordinator_->OnDisconnect(id, now);
  }
  template <typename Members>
  void TellAll(const Members& members) {
    for (const uint64_t id : IdsOf(members)) {
      if (members.contains(id)) Tell(id);
    }
  }
  // A member dies instead of obeying, or while another one does.
  void DieAt(uint64_t id) {
    const bool is_shard = fault.kind == Fault::Kind::kShardDies;
    const std::vector<uint64_t> ids = is_shard ? IdsOf(shards) : IdsOf(workers);
    if (ids.empty() || (!is_shard && fault.kind != Fault::Kind::kWorkerDies)) return;
    Die(std::ranges::count(ids, id) > 0 ? id : ids.front());
  }

  void Obey() {
    while (!orders_.empty()) {
      const auto [id, order, fails] = orders_.front();
      orders_.pop_front();
      history.emplace_back(id, order);
      if (fails) DieAt(id);
      if (silent.contains(id) || unreached.contains(id) || !obedient) continue;
      if (const auto shard = shards.find(id); shard != shards.end()) {
        ObeyAsShard(id, shard->second, order);
      } else if (const auto worker = workers.find(id); worker != workers.end()) {
        ObeyAsWorker(id, worker->second, order);
      }
    }
    StartAgainIfDead();
  }
  void ObeyAsShard(uint64_t id, ShardReport& shard, const Order& order) {
    if (order.kind == Kind::kPrepare) {
      if (order.generation.number <= shard.prepared) return;
      shard.prepared = order.generation.number;
      // Its lanes are cut, so that all workers' exchanges end.
      for (auto& [worker_id, worker] : workers) {
        if (silent.contains(worker_id) || hung.contains(worker_id) || worker.ready) continue;
        worker.ready = true;
        worker.computes = false;
        worker.trouble = "server: the lanes were cut";
        coordinator_->OnWorker(worker_id, worker, now);
      }
      coordinator_->OnShard(id, shard, now);
    } else if (order.kind == Kind::kServe) {
      // One that was overtaken, or was obeyed before.
      if (order.generation.number != shard.prepared || order.generation.number == shard.generation) return;
      shard.generation = order.generation.number;
      shard.trouble.clear();
      shard.finished = false;
      std::erase_if(shard.held, [&](int64_t step) { return step > order.generation.first_step; });
      std::erase_if(shard.durable, [&](int64_t step) { return step > order.generation.first_step; });
    } else if (order.kind == Kind::kKeep) {
      std::erase_if(shard.held, [&](int64_t step) { return step < order.generation.first_step; });
      std::erase_if(shard.durable, [&](int64_t step) { return step < order.generation.first_step; });
    }
  }
  void ObeyAsWorker(uint64_t id, WorkerReport& worker, const Order& order) {
    if (order.kind == Kind::kStop) {
      told_to_stop_.insert(id);
    } else if (order.kind == Kind::kTrain && order.generation.number > worker.generation) {
      told_to_stop_.erase(id);
      worker.generation = order.generation.number;
      worker.ready = false;
      worker.computes = true;
      worker.trouble.clear();
    }
  }

  RunSetup setup_;
  std::unique_ptr<GenerationLog> log_;
  std::unique_ptr<Coordinator> coordinator_;
  std::deque<Sent> orders_;
  std::set<uint64_t> told_to_stop_;
  std::map<int, std::vector<int64_t>> files_;  // by shard, of processes that are dead
  uint64_t next_id_ = 5000;
  uintmax_t logged_ = 0;                     // bytes that the log had at the last order
  std::optional<std::string> log_at_death_;  // the coordinator's
};

TEST(CoordinatorTest, BeginsWithAllFirstWorkersAndShards) {
  Play play({.shards = 2, .first_workers = 3});
  play.AddWorker(1);
  play.AddWorker(2);
  EXPECT_EQ(play.generation(), 0);
  play.AddWorker(3);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2, 3));
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_EQ(play.last().leaf_owners, DealLeavesEvenly(8, 3));
  const Order& order = play.history.back().second;
  EXPECT_EQ(order.kind, Kind::kTrain);
  EXPECT_FALSE(order.from_snapshot);
  EXPECT_THAT(order.shards, ElementsAre("host:1000", "host:1001"));
}

TEST(CoordinatorTest, AWorkerThatDiesCostsAReturnToTheNewestSnapshotOfAllShards) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.shards[1000].held.push_back(30);  // the other shard is a step behind
  play.Kill(1);
  play.Pass(milliseconds(900));
  EXPECT_EQ(play.generation(), 1);  // the connection may come back
  play.Pass(milliseconds(300));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 20);
  EXPECT_THAT(play.last().workers, ElementsAre(2));
  EXPECT_EQ(play.counted_end(), 20);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 1 is gone"));
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

TEST(CoordinatorTest, ASilentWorkerIsGivenUpAndMayComeBack) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.silent.insert(2);
  play.Pass(milliseconds(4'900));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(400));
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.KindsTo(2), testing::Contains(Kind::kGivenUp));
  // It wakes up, finds its lanes cut, and attends again.
  play.silent.clear();
  play.AddWorker(2);
  play.Snapshot(20);
  EXPECT_EQ(play.generation(), 2) << "the others go on to a snapshot first";
  EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
  play.workers[1].ready = true;
  play.Tell(1);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 20);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
}

TEST(CoordinatorTest, AStuckWorkerIsGivenUpAndOneThatWaitsForOthersIsNot) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.stuck.insert(id);
    play.workers[id].seconds_per_leaf = 0.1;
  }
  play.workers[1].computes = false;  // it waits for worker 2
  play.Pass(milliseconds(9'500));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(1'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 2 is stuck"));
  // 20 leaves may take longer than that.
  Play slow({.first_workers = 1});
  slow.AddWorker(1);
  slow.stuck.insert(1);
  slow.workers[1].seconds_per_leaf = 1;
  slow.Pass(milliseconds(19'000));
  EXPECT_EQ(slow.generation(), 1);
  slow.Pass(milliseconds(2'000));
  EXPECT_THAT(slow.coordinator().Describe().cause, HasSubstr("worker 1 is stuck"));
}

// Its exchange was cut, and it does not come back from it.
TEST(CoordinatorTest, AWorkerThatHangsInAWaitHoldsUpAChangeForAsLong) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.hung.insert(2);
  play.workers[2].computes = false;
  play.Tell(2);
  play.workers[1].trouble = "no answer";
  play.workers[1].ready = true;
  play.Tell(1);
  play.Pass(milliseconds(9'500));
  EXPECT_EQ(play.generation(), 1);
  play.Pass(milliseconds(1'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1));
}

// Nobody waits for it, so that no shard misses it.
TEST(CoordinatorTest, AWorkerThatHangsAloneIsGivenUpAndOneThatWaitsForItsDiskIsNot) {
  Play play({.first_workers = 1});
  play.AddWorker(1);
  play.Snapshot(10);
  play.workers[1].computes = false;  // and its count grows
  play.Pass(milliseconds(120'000));
  EXPECT_FALSE(play.coordinator().Describe().changing);
  play.hung.insert(1);
  play.Pass(milliseconds(59'500));
  EXPECT_FALSE(play.coordinator().Describe().changing);
  play.Pass(milliseconds(1'000));
  EXPECT_TRUE(play.coordinator().Describe().changing);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("worker 1 is stuck: it has come no further"));
}

// It hears that it was given up, and attends again before the shard has prepared, while its step still does not end.
TEST(CoordinatorTest, NobodyWaitsForAStuckWorkerThatAttendsAgain) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.hung.insert(2);
  play.unreached.insert(kShardIds);
  play.Pass(milliseconds(10'500));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_TRUE(play.coordinator().AddWorker(2, "worker 2", play.workers[2], play.now).ok());
  play.unreached.clear();
  play.Pass(milliseconds(2'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1));
}

TEST(CoordinatorTest, AShardThatDiesIsWaitedForAndComesBackWithItsFiles) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(1001);
  play.Pass(milliseconds(3'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("server 1 is gone"));
  play.shards[1000].held = {10, 20};
  play.Tell(1000);
  play.shards[77] = {.shard = 1, .address = "host:77", .held = {10}, .durable = {10}};
  ASSERT_TRUE(play.coordinator().AddShard(77, "server 1", play.shards[77], play.now).ok());
  play.Tell(77);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

// Also in the first generation, of which no step has counted yet.
TEST(CoordinatorTest, AShardThatComesBackWithoutItsFilesEndsTheRun) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(100'000);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  EXPECT_EQ(play.generation(), 1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("come to step 100000"), HasSubstr("shard 0 has that of step 100000"),
                    HasSubstr("shard 1 has none"), HasSubstr("--resume")));
}

// A coordinator that was started again knows from no report what all shards had.
TEST(CoordinatorTest, SnapshotsThatOneShardAloneHasShowHowFarTheRunWas) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(100'000);
  play.StartCoordinator();
  for (auto& [id, worker] : play.workers) worker.ready = true;
  play.shards.erase(1001);
  const ShardReport left = play.shards[1000];
  ASSERT_TRUE(play.coordinator().AddShard(1000, "server 0", left, play.now).ok());
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
}

TEST(CoordinatorTest, BeginsAnewAndSaysSoBeforeAllShardsHaveASnapshotOnDisk) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10, /*is_durable=*/false);
  play.workers[1].step = 13;
  play.Tell(1);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("goes back from step 13 to step 0")));
}

// A disk has failed since the run began.
TEST(CoordinatorTest, ARunThatLosesMoreThanAMinuteOfStepsEnds) {
  for (const double step_seconds : {0.005, 0.01}) {
    Play play({.shards = 2});
    play.AddWorker(1);
    play.AddWorker(2);
    play.Snapshot(10'000, /*is_durable=*/false);
    play.workers[1].step = 10'000;
    play.workers[1].step_seconds = step_seconds;
    play.Tell(1);
    play.Kill(1001);
    play.Pass(milliseconds(1'200));
    ASSERT_TRUE(play.AddShard(1, 77).ok());
    if (step_seconds < 0.006) {
      EXPECT_EQ(play.generation(), 2);
      continue;
    }
    ASSERT_TRUE(play.coordinator().ended().has_value());
    EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(play.coordinator().ended()->message()),
                AllOf(HasSubstr("come to step 10000"), HasSubstr("--resume")));
  }
}

// Its log says only that the run has begun.
TEST(CoordinatorTest, ACoordinatorThatIsStartedAgainHearsFromWorkersHowFarTheRunWas) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[1].step = 10'000;
  play.workers[1].step_seconds = 0.01;
  play.StartCoordinator();
  play.shards.clear();
  ASSERT_TRUE(play.AddShard(0, 2000).ok());
  play.AddWorker(1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kDataLoss);
}

// What it has lost it has again in memory when the shard with that disk dies once more.
TEST(CoordinatorTest, ARunWithADiskThatFailsDoesNotGoInCircles) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  for (uint64_t round = 0; round < 6 && !play.coordinator().ended().has_value(); ++round) {
    play.AddWorker(10 + round);  // a planned change, after which all is well
    play.Step(/*is_durable=*/false);
    EXPECT_EQ(play.last().first_step, play.newest_step);
    play.Kill(play.shards.rbegin()->first);
    play.Pass(milliseconds(1'200));
    play.RestartShard(1);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("3 generations have not brought the run further"), HasSubstr("begin at step 0"),
                    HasSubstr("server 1 is gone")));
  EXPECT_EQ(play.newest_step, 30);
}

TEST(CoordinatorTest, ADiskThatWritesNothingIsSaid) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.Pass(milliseconds(61'000));
  const auto complaint =
      testing::Contains(HasSubstr("no snapshot after step 20 is on all disks: look at that of "
                                  "server 1,"));
  EXPECT_THAT(play.said, testing::Not(complaint));
  for (const int64_t step : {30, 40}) {
    play.shards[1000].durable.push_back(step);
    for (auto& [id, shard] : play.shards) shard.held.push_back(step);
  }
  play.Pass(milliseconds(61'000));
  EXPECT_THAT(play.said, complaint);
}

// The log was lost, or moved away for a new run of the same name.
TEST(CoordinatorTest, SnapshotsOfARunThatTheLogDoesNotHaveAreNotUsed) {
  Play play({});
  play.shards[1000].held = play.shards[1000].durable = {10};
  play.Tell(1000);
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
  EXPECT_EQ(play.OrdersTo(1000, Kind::kKeep), 0);
}

TEST(CoordinatorTest, AWorkerThatWouldBeginElsewhereIsRefusedUntilThereIsASnapshot) {
  Play play({.first_step = 100});
  play.workers[1].first_step = 100;
  play.AddWorker(1);
  play.AddWorker(2);  // without --resume
  EXPECT_EQ(play.generation(), 0);
  ASSERT_THAT(play.KindsTo(2), ElementsAre(Kind::kEnd));
  const absl::Status why = play.history.back().second.end;
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("began at step 100"), HasSubstr("would begin at step 0: give --resume")));
  play.workers.erase(2);
  play.workers[3].first_step = 100;
  play.AddWorker(3);
  ASSERT_EQ(play.generation(), 1);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 3));
  // A process that was started again finds a newer checkpoint.
  play.workers[4].first_step = 150;
  play.AddWorker(4);
  EXPECT_THAT(play.KindsTo(4), IsEmpty());
  play.Snapshot(110);
  for (const uint64_t id : {1, 3}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 3, 4));
  EXPECT_EQ(play.last().first_step, 110);
  EXPECT_TRUE(play.history.back().second.from_snapshot);
}

// It came in by a snapshot that was in memory alone.
TEST(CoordinatorTest, AWorkerThatWouldBeginElsewhereDoesNotBeginAnew) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[3].first_step = 50;
  play.AddWorker(3);
  play.Snapshot(10, /*is_durable=*/false);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2, 3));
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 0);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
  EXPECT_EQ(play.KindsTo(3).back(), Kind::kEnd);
}

// It is of a run that began earlier in the same folder.
TEST(CoordinatorTest, ASnapshotOfAStepThatTheRunDoesNotHaveIsNotUsed) {
  Play play({.first_step = 100});
  play.shards[1000].held = play.shards[1000].durable = {90, 100};
  play.Tell(1000);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].first_step = 100;
    play.AddWorker(id);
  }
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 100);
  EXPECT_FALSE(play.history.back().second.from_snapshot);
}

TEST(CoordinatorTest, AReplacedShardIsNoLongerOne) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.silent.insert(1001);
  const ShardReport old = play.shards[1001];
  EXPECT_EQ(play.AddShard(1, 77).code(), absl::StatusCode::kAlreadyExists);
  play.Pass(milliseconds(5'300));
  play.shards[77] = {.shard = 1, .address = "host:77", .held = {10}, .durable = {10}};
  ASSERT_TRUE(play.coordinator().AddShard(77, "server 1", play.shards[77], play.now).ok());
  play.Tell(77);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_THAT(play.history.back().second.shards, ElementsAre("host:1000", "host:77"));
  // The one that wakes up is refused.
  EXPECT_EQ(play.coordinator().AddShard(1001, "server 1, again", old, play.now).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(CoordinatorTest, EndsWhenAShardDoesNotComeBack) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Kill(1001);
  play.Pass(milliseconds(62'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("shard 1 of 2 has not come"), HasSubstr("server 1 is gone"), HasSubstr("--resume")));
}

TEST(CoordinatorTest, TheFirstWorkersAndShardsHaveTheTimeOfTheStart) {
  Play play(
      {.shards = 2, .first_workers = 2, .start_deadline = milliseconds(600'000), .waited = milliseconds(100'000)});
  play.AddWorker(1);
  play.Kill(1001);
  play.Pass(milliseconds(200'000));
  play.RestartShard(1);
  play.Pass(milliseconds(200'000));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.Kill(play.shards.rbegin()->first);  // a run that has begun waits for less
  play.Pass(milliseconds(62'000));
  EXPECT_TRUE(play.coordinator().ended().has_value());
}

TEST(CoordinatorTest, EndsWhenTheFirstWorkersDoNotComeInTimeFromTheStartOn) {
  Play play({.first_workers = 2, .start_deadline = milliseconds(600'000), .waited = milliseconds(590'000)});
  play.AddWorker(1);
  play.Pass(milliseconds(9'500));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.Pass(milliseconds(1'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              HasSubstr("1 of at least 2 workers have come within 600.0 s"));
}

TEST(CoordinatorTest, TooFewWorkersAreSaidAndEndTheRunAtLast) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Kill(2);
  play.Pass(milliseconds(15'000));
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("1 of at least 2 workers")));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.Pass(milliseconds(60'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorTest, TooFewWorkersSaveBeforeTheRunEnds) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(60'000));
  ASSERT_EQ(play.generation(), 1);
  play.Pass(milliseconds(2'000));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_TRUE(play.history.back().second.ends_run);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("saves before it ends: 1 of at least 2 workers")));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("1 of at least 2 workers"), HasSubstr("worker 2 is gone"),
                    HasSubstr("--resume from the last checkpoint, or all with the same --state_dir")));
  // The second of these ways.
  const ShardReport left = play.shards[1000];
  play.StartCoordinator();
  play.shards.clear();
  play.shards[2000] = {.shard = 0, .address = "again", .held = left.durable, .durable = left.durable};
  ASSERT_TRUE(play.coordinator().AddShard(2000, "server 0", play.shards[2000], play.now).ok());
  play.Tell(2000);
  play.AddWorker(3);
  play.AddWorker(4);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_FALSE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, TooFewWorkersThatHangWhileTheySaveEndTheRunToo) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  ASSERT_TRUE(play.history.back().second.ends_run);
  play.workers[1].computes = false;
  play.hung.insert(1);
  play.Pass(milliseconds(62'000));
  EXPECT_FALSE(play.coordinator().ended().has_value()) << "another one may come and save";
  play.Pass(milliseconds(60'000));
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("0 of at least 1 workers"), HasSubstr("worker 1 is stuck")));
}

// A worker died during the evaluation after the last step.
TEST(CoordinatorTest, TooFewWorkersSaveAlsoAfterErrors) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (int i = 0; i < 3; ++i) {  // the third would be the last one
    play.workers[2].ready = true;
    play.workers[2].trouble = "no memory";
    play.Tell(2);
  }
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  EXPECT_FALSE(play.coordinator().ended().has_value());
  EXPECT_TRUE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, TooFewWorkersAreEnoughIfAllStepsAreDone) {
  Play play({.first_workers = 2, .min_workers = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(1000);
  play.Kill(2);
  play.Pass(milliseconds(62'000));
  ASSERT_EQ(play.generation(), 2);
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
}

TEST(CoordinatorTest, MoreWorkersThanLeavesAreSparesThatComeIn) {
  Play play({.leaves = 2, .first_workers = 2});
  for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.KindsTo(3), ElementsAre(Kind::kWait));  // once
  play.Snapshot(10);
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(2, 3));
}

TEST(CoordinatorTest, ASpareIsToldThatTheRunEnds) {
  Play play({.leaves = 2, .first_workers = 2});
  for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
  play.coordinator().EndRun(play.now);
  play.Step();
  ASSERT_EQ(play.generation(), 2);
  play.Pass(milliseconds(1'000));
  std::vector<std::string> told;
  for (const auto& [id, order] : play.history) {
    if (id == 3 && order.kind == Kind::kWait) told.push_back(order.text);
  }
  EXPECT_THAT(told, ElementsAre(HasSubstr("a spare: all 2 micro-batches"), HasSubstr("comes in only if that fails")));
  play.Finish();
  EXPECT_EQ(play.KindsTo(3).back(), Kind::kEnd);
}

TEST(CoordinatorTest, AWorkerLeavesWithoutLosingAStep) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[1].leaves = true;
  play.Tell(1);
  EXPECT_EQ(play.KindsTo(2).back(), Kind::kStop);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(2));
  EXPECT_EQ(play.last().first_step, 10);
  play.Kill(1);
  EXPECT_THAT(play.said, testing::Contains("worker 1 has left"));
  play.Pass(milliseconds(2'000));
  EXPECT_EQ(play.generation(), 2);
}

TEST(CoordinatorTest, AnExchangeThatFailsBeginsAGeneration) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.workers[2].ready = true;
  play.workers[2].trouble = "server host:1000: broken pipe";
  play.Tell(2);
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.coordinator().Describe().cause, HasSubstr("broken pipe"));
  play.shards[1000].trouble = "rank 1 has not contributed bucket 0";
  play.Tell(1000);
  EXPECT_EQ(play.generation(), 3);
}

TEST(CoordinatorTest, AnErrorOfTheJobEndsTheRun) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.workers[2].failure = absl::InternalError("the gradient of fc1 is not finite");
  play.Tell(2);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->message(), "the gradient of fc1 is not finite (reported by worker 2)");
  EXPECT_EQ(play.KindsTo(1).back(), Kind::kEnd);
}

TEST(CoordinatorTest, AnErrorThatComesBackInEachGenerationEndsTheRun) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (int i = 0; i < 10 && !play.coordinator().ended().has_value(); ++i) {
    play.workers[2].ready = true;
    play.workers[2].trouble = absl::StrCat("no memory, attempt ", i);
    play.Tell(2);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.generation(), 4);  // at step 0, and three times at step 10
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("attempt 1"), HasSubstr("attempt 2"), HasSubstr("attempt 3")));
}

// A worker that joins has the others stop at a snapshot. An error that keeps them from it is one all the same.
TEST(CoordinatorTest, AnErrorThatComesBackEndsTheRunAlsoIfWorkersJoin) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  for (uint64_t i = 0; i < 5 && !play.coordinator().ended().has_value(); ++i) {
    play.AddWorker(10 + i);
    EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
    play.workers[2].ready = true;
    play.workers[2].trouble = absl::StrCat("no memory, attempt ", i);
    play.Tell(2);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.generation(), 4);
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("attempt 1"), HasSubstr("attempt 2"), HasSubstr("attempt 3")));
}

TEST(CoordinatorTest, ACoordinatorThatWasStoppedBlamesNobody) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.now += std::chrono::seconds(30);
  play.coordinator().Tick(play.now);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
  EXPECT_THAT(play.said, testing::SizeIs(1));
}

TEST(CoordinatorTest, ACoordinatorThatWasStoppedBlamesNobodyForTheirSilence) {
  Play play({.first_workers = 1, .times = {.gone = milliseconds(60'000)}});
  play.AddWorker(1);
  play.now += std::chrono::seconds(10);
  play.coordinator().Tick(play.now);
  play.Pass(milliseconds(1'000));
  EXPECT_EQ(play.generation(), 1);
}

TEST(CoordinatorTest, ACoordinatorThatIsStartedAgainBeginsANewGeneration) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.StartCoordinator();
  play.obedient = true;
  for (auto& [id, worker] : play.workers) worker.ready = true;
  // Shard 0 is a new process and has its files; shard 1 lives, and has more.
  play.shards.clear();
  const auto add = [&](int shard, uint64_t id, std::vector<int64_t> held) {
    play.shards[id] = {.shard = shard, .address = absl::StrCat("host:", id), .held = held, .durable = held};
    ASSERT_TRUE(play.coordinator().AddShard(id, absl::StrCat("server ", shard), play.shards[id], play.now).ok());
    play.Tell(id);
  };
  add(0, 2000, {10});
  add(1, 1001, {10, 20});
  play.AddWorker(1);
  EXPECT_EQ(play.generation(), 1) << "the other worker is about to come";
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_EQ(play.last().first_step, 10);
}

TEST(CoordinatorTest, ALostLogOfSnapshotsIsSaid) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.counted_end(), 10);
  play.shards[1000].held = {};
  play.workers[1].ready = true;
  play.workers[1].trouble = "x";
  play.Tell(1000);
  play.Tell(1);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_THAT(std::string(play.coordinator().ended()->message()),
              AllOf(HasSubstr("come to step 10, and no snapshot is on all"), HasSubstr("--state_dir")));
}

// A generation may begin from memory, before the files are written.
TEST(CoordinatorTest, GoesBackFurtherWhenASnapshotIsLostThatHadCounted) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.Snapshot(20);
  play.Kill(2);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.counted_end(), 20);
  play.shards[1000].held = play.shards[1000].durable = {10};
  play.Tell(1000);
  play.workers[1].ready = true;
  play.workers[1].trouble = "server: broken pipe";
  play.Tell(1);
  ASSERT_EQ(play.generation(), 3);
  EXPECT_EQ(play.last().first_step, 10);
  EXPECT_EQ(play.counted_end(), 10);
  EXPECT_THAT(play.said, testing::Contains(HasSubstr("goes back from step 20 to step 10")));
  play.Snapshot(30);
  play.shards[1000].finished = true;
  play.Tell(1000);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus()) << "the log proves that all steps counted once";
}

TEST(CoordinatorTest, SharesFollowSpeedAndDoNotOscillate) {
  Play play({.leaves = 16});
  play.AddWorker(1);
  play.AddWorker(2);
  EXPECT_EQ(std::ranges::count(play.last().leaf_owners, 0), 8);
  std::mt19937 random(7);
  const auto measure = [&] {
    // Half speed, and a twentieth more or less.
    const auto noise = [&] { return 0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000; };
    play.workers[1].seconds_per_leaf = 0.01 * noise();
    play.workers[2].seconds_per_leaf = 0.02 * noise();
  };
  int64_t step = 0;
  int64_t generations = 0;
  for (int minute = 0; minute < 20; ++minute) {
    for (int second = 0; second < 60; ++second) {
      measure();
      play.Pass(milliseconds(1'000));
      if (play.KindsTo(1).back() != Kind::kStop) continue;
      play.Snapshot(step += 10);
      for (const uint64_t id : {1, 2}) {
        play.workers[id].ready = true;
        play.Tell(id);
      }
      ++generations;
    }
  }
  EXPECT_EQ(generations, 1);
  // The best: 11 : 5 takes 110 : 100, and 10 : 6 takes 100 : 120.
  EXPECT_THAT(std::ranges::count(play.last().leaf_owners, 0), testing::AnyOf(10, 11));
}

// Dealing takes long if there are many workers: no report causes it, and what has gained nothing is not tried again at
// once.
TEST(CoordinatorTest, SharesAreDealtSeldom) {
  Play play({.leaves = 3});
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(std::ranges::count(play.last().leaf_owners, 0), 2);
  const auto set_speeds = [&](double first, double second) {
    play.workers[1].seconds_per_leaf = first;
    play.workers[2].seconds_per_leaf = second;
  };
  set_speeds(1, 1);  // 2 : 1 is the best, and leaves a worker idle: only dealing shows it
  play.Pass(milliseconds(20'500));
  set_speeds(2, 1);  // 1 : 2 would be faster
  play.Pass(milliseconds(19'000));
  EXPECT_EQ(play.OrdersTo(1, Kind::kStop), 0);
  play.now += milliseconds(900);
  for (int report = 0; report < 10; ++report) play.Tell(1);
  EXPECT_EQ(play.OrdersTo(1, Kind::kStop), 0);
  play.Pass(milliseconds(1'000));
  EXPECT_GT(play.OrdersTo(1, Kind::kStop), 0);
}

TEST(CoordinatorTest, AnOrderThatWasLostIsRepeated) {
  Play play({.shards = 2});
  play.unreached = {2, 1001};
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.Pass(milliseconds(3'900));
  // Not for each report.
  EXPECT_THAT(play.OrdersTo(2, Kind::kTrain), AllOf(testing::Ge(3), testing::Le(4)));
  EXPECT_THAT(play.OrdersTo(1001, Kind::kServe), AllOf(testing::Ge(3), testing::Le(4)));
  EXPECT_EQ(play.OrdersTo(1, Kind::kTrain), 1);
  EXPECT_EQ(play.OrdersTo(1000, Kind::kServe), 1);
  play.unreached.clear();
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.workers[2].generation, 1);
  EXPECT_EQ(play.shards[1001].generation, 1);
  EXPECT_EQ(play.generation(), 1);

  // The order to stop, and that to leave the generation.
  play.workers[1].leaves = true;
  play.Tell(1);
  ASSERT_EQ(play.OrdersTo(2, Kind::kStop), 1);
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.OrdersTo(2, Kind::kStop), 2);
  play.unreached = {1001};
  play.Kill(1);
  play.Pass(milliseconds(1'500));
  EXPECT_EQ(play.generation(), 1) << "a shard has not left it";
  play.unreached.clear();
  play.Pass(milliseconds(1'200));
  EXPECT_EQ(play.generation(), 2);
}

// While it lives, no file of this process gets longer.
class NoSpace {
 public:
  NoSpace() : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit none = {.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~NoSpace() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    signal(SIGXFSZ, handler_);
  }
  NoSpace(const NoSpace&) = delete;
  NoSpace& operator=(const NoSpace&) = delete;

 private:
  rlimit before_ = {};
  void (*const handler_)(int);
};

TEST(CoordinatorTest, WhoComesAfterTheEndHearsOfIt) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  {
    const NoSpace no_space;
    play.StartCoordinator();
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_FALSE(play.coordinator().ended()->ok());
  EXPECT_TRUE(play.AddShard(0, 1000).ok());
  play.AddWorker(1);
  play.AddWorker(3);
  for (const uint64_t id : {1000, 1, 3}) {
    ASSERT_EQ(play.KindsTo(id).back(), Kind::kEnd) << id;
  }
  EXPECT_EQ(play.history.back().second.end, *play.coordinator().ended());
}

TEST(CoordinatorTest, AProcessIsOneMemberAsLongAsItLives) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.shards[1001].shard = 0;
  play.Tell(1001);
  play.coordinator().OnShard(1, play.shards[1000], play.now);
  play.coordinator().OnWorker(1000, {.failure = absl::InternalError("no shard's")}, play.now);
  EXPECT_FALSE(play.coordinator().ended().has_value());
  play.coordinator().OnDisconnect(1001, play.now);
  EXPECT_EQ(play.coordinator().AddShard(1001, "server 0", play.shards[1001], play.now).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(play.coordinator().AddWorker(1001, "worker", {}, play.now).code(), absl::StatusCode::kAlreadyExists);
  play.Kill(1001);
  play.Pass(milliseconds(1'200));
  EXPECT_THAT(play.coordinator().Describe().missing_shards, ElementsAre(1));
  ASSERT_TRUE(play.AddShard(1, 77).ok());
  EXPECT_EQ(play.generation(), 2);
}

TEST(CoordinatorTest, EndsWhenAllShardsHaveFinished) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  for (const uint64_t id : {1000, 1001}) {
    play.shards[id].finished = true;
    play.Tell(id);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
}

TEST(CoordinatorTest, EndsAtTheNextSnapshotWhenItIsAskedTo) {
  Play play({.shards = 2});
  play.AddWorker(1);
  play.AddWorker(2);
  play.Snapshot(10);
  play.coordinator().EndRun(play.now);
  play.Tell(1);
  EXPECT_EQ(play.KindsTo(1).back(), Kind::kStop);
  EXPECT_EQ(play.generation(), 1) << "the workers go on to a snapshot first";
  play.Snapshot(20);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_TRUE(play.history.back().second.ends_run);
  EXPECT_EQ(play.last().first_step, 20);
  // Nobody joins what is over, and who dies while it saves is replaced as ever.
  play.AddWorker(3);
  EXPECT_EQ(play.generation(), 2);
  EXPECT_THAT(play.KindsTo(3), ElementsAre(Kind::kWait));
  EXPECT_THAT(play.history.back().second.text, HasSubstr("the run ends: its last generation saves"));
  play.Kill(1);
  play.Pass(milliseconds(1'200));
  ASSERT_EQ(play.generation(), 3);
  EXPECT_TRUE(play.history.back().second.ends_run);
  for (const uint64_t id : {1000, 1001}) {
    play.shards[id].finished = true;
    play.Tell(id);
  }
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
  EXPECT_EQ(play.counted_end(), 20);
}

// A scheduler may tell all processes to stop at once.
TEST(CoordinatorTest, WhoWantsToLeaveStaysToSave) {
  Play play({});
  play.AddWorker(1);
  play.AddWorker(2);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].leaves = true;
    play.Tell(id);
  }
  play.coordinator().EndRun(play.now);
  play.Snapshot(10);
  for (const uint64_t id : {1, 2}) {
    play.workers[id].ready = true;
    play.Tell(id);
  }
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
  EXPECT_TRUE(play.history.back().second.ends_run);
}

TEST(CoordinatorTest, EndsAtOnceBeforeItsFirstStep) {
  Play play({.first_workers = 2});
  play.AddWorker(1);
  play.coordinator().EndRun(play.now);
  ASSERT_TRUE(play.coordinator().ended().has_value());
  EXPECT_EQ(play.coordinator().ended()->code(), absl::StatusCode::kCancelled);
}

TEST(CoordinatorTest, SaysHowTheRunIs) {
  Play play({.shards = 2, .leaves = 8});
  for (const uint64_t id : {1, 2}) play.AddWorker(id);
  play.Snapshot(10);
  play.shards[1000].held.push_back(20);
  play.Tell(1000);
  play.workers[1].step = 17;
  play.Tell(1);
  Coordinator::Status status = play.coordinator().Describe();
  EXPECT_EQ(status.generation, 1);
  EXPECT_EQ(status.step, 17);
  EXPECT_FALSE(status.changing);
  EXPECT_THAT(status.snapshots, ElementsAre(10));
  EXPECT_THAT(status.missing_shards, IsEmpty());
  ASSERT_EQ(status.members.size(), 4U);
  EXPECT_EQ(status.members[0].what, "rank 0, micro-batches 0-4");
  EXPECT_EQ(status.members[3].what, "shard 1 of 2");
  play.Kill(1001);
  EXPECT_THAT(play.coordinator().Describe().missing_shards, ElementsAre(1));
}

enum class Change { kWorkerDies, kWorkerJoins, kWorkerLeaves, kShardDies };

class FaultTest : public testing::TestWithParam<Change> {
 protected:
  static void Make(Change change, Play* play) {
    const uint64_t worker = play->workers.begin()->first;
    switch (change) {
      case Change::kWorkerDies:
        return play->Kill(worker);
      case Change::kWorkerJoins:
        return play->AddWorker(7);
      case Change::kWorkerLeaves:
        play->workers[worker].leaves = true;
        return play->Tell(worker);
      case Change::kShardDies:
        return play->Kill(play->shards.rbegin()->first);
    }
  }
  // A run with one change, from its beginning to its end, and what goes wrong. Returns how many orders there were.
  static int64_t PlayRun(Change change, const Fault& fault) {
    const RunSetup setup{.shards = 2, .fault = fault, .folder = NewFolder()};
    Play play(setup);
    for (const uint64_t id : {1, 2}) play.AddWorker(id);
    EXPECT_TRUE(play.GoesOnUntil([&] { return play.newest_step >= 20 && play.Runs(); }));
    if (HasFailure()) return 0;
    const int64_t before = play.generation();
    Make(change, &play);
    EXPECT_TRUE(play.GoesOnUntil([&] { return play.generation() > before && play.Runs(); }));
    EXPECT_TRUE(play.GoesOnUntil([&] {
      if (play.Runs()) play.Finish();
      return play.coordinator().ended().has_value();
    }));
    if (HasFailure()) return 0;
    EXPECT_EQ(*play.coordinator().ended(), absl::OkStatus());
    EXPECT_EQ(GenerationLog::Peek(setup.folder, "play"), GenerationLog::Progress::kEnded);
    EXPECT_EQ(CheckExactlyOnce(play.Log()), absl::OkStatus());
    return play.sent;
  }
};

// At each order of the change, and of the run's beginning and end.
TEST_P(FaultTest, TheRunSurvivesOneAtEveryOrder) {
  const int64_t order_count = PlayRun(GetParam(), {});
  ASSERT_GT(order_count, 15);
  for (const Fault::Kind kind :
       {Fault::Kind::kOrderIsLost, Fault::Kind::kCoordinatorDiesBefore, Fault::Kind::kCoordinatorDiesWriting,
        Fault::Kind::kCoordinatorDiesAfter, Fault::Kind::kShardDies, Fault::Kind::kWorkerDies}) {
    for (int64_t order = 0; order < order_count; ++order) {
      PlayRun(GetParam(), {.kind = kind, .order = order});
      ASSERT_FALSE(HasFailure()) << "fault " << static_cast<int>(kind) << " at order " << order << " of "
                                 << order_count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachChange, FaultTest,
                         testing::Values(Change::kWorkerDies, Change::kWorkerJoins, Change::kWorkerLeaves,
                                         Change::kShardDies));

// Two faults, of which the second comes before the first was noticed.
TEST(CoordinatorTest, AWorkerWhoseOrderToTrainWasLostIsReadyForTheNextGeneration) {
  Play play({.shards = 2});
  play.unreached = {2};
  play.AddWorker(1);
  play.AddWorker(2);
  ASSERT_EQ(play.generation(), 1);
  play.unreached.clear();
  play.shards[1000].trouble = "rank 1 has not joined";
  play.Tell(1000);
  ASSERT_EQ(play.generation(), 2);
  EXPECT_THAT(play.last().workers, ElementsAre(1, 2));
}

// Random failures, at any moment of any change: a generation always follows, and the log proves that each step counted
// once. A shard that dies loses the snapshots that were in memory alone.
TEST(CoordinatorTest, SurvivesAnyOrderOfFailures) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Play play({.shards = 2, .first_workers = 3});
    for (const uint64_t id : {1, 2, 3}) play.AddWorker(id);
    const auto any = [&](const auto& members) { return std::next(members.begin(), random() % members.size())->first; };
    // To a coordinator that was started again a young run is one that has lost its snapshots: it needs one first.
    const bool coordinator_dies = seed % 2 == 0;
    if (coordinator_dies) play.Step();
    uint64_t next_id = 10;
    for (int event = 0; event < 60; ++event) {
      for (int wait = 0; wait < 40 && !play.Runs(); ++wait) {
        play.Pass(milliseconds(500));
        play.Recover();
      }
      ASSERT_FALSE(play.coordinator().ended().has_value()) << *play.coordinator().ended();
      ASSERT_TRUE(play.Runs()) << "event " << event;
      EXPECT_EQ(play.last().first_step, play.counted_end());
      // Three generations without a durable one could end the run (kStrikesMax).
      play.Step(/*is_durable=*/event % 2 == 1 || random() % 2 == 0);
      if (play.workers.empty()) continue;
      const uint64_t worker = any(play.workers);
      switch (random() % 6) {
        case 0:
          play.Kill(worker);
          break;
        case 1:
          play.AddWorker(next_id++);
          break;
        case 2:
          if (!play.shards.empty()) play.Kill(any(play.shards));
          break;
        case 3:
          play.silent.insert(worker);
          play.Pass(milliseconds(5'500));
          play.silent.erase(worker);
          play.workers[worker] = {.generation = play.workers[worker].generation};  // which it remembers
          play.AddWorker(worker);
          break;
        case 4:
          play.workers[worker].leaves = random() % 2 == 0;
          break;
        default:
          play.fault = {.kind = coordinator_dies ? static_cast<Fault::Kind>(random() % 4) : Fault::Kind::kOrderIsLost,
                        .order = play.sent + static_cast<int64_t>(random() % 12)};
          break;
      }
      play.Pass(milliseconds(random() % 2'000));
    }
    EXPECT_GT(play.generation(), 10);
    EXPECT_EQ(CheckExactlyOnce(play.Log()), absl::OkStatus());
  }
}

}  // namespace
}  // namespace starring
