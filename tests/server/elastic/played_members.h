// Members that are played before a coordinator, with a clock that is set.
#ifndef STARRING_TESTS_SERVER_ELASTIC_PLAYED_MEMBERS_H_
#define STARRING_TESTS_SERVER_ELASTIC_PLAYED_MEMBERS_H_

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "gtest/gtest.h"
#include "server/elastic/coordinator.h"
#include "server/elastic/generation_log.h"

namespace starring {

inline constexpr uint64_t kShardIds = 1000;

inline std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/coordinator.XXXXXX");
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// A fault that happens once, at the order with this number; the first order is 0. After each write to the log comes an
// order.
struct Fault {
  enum class Kind {
    kOrderIsLost,
    kCoordinatorDiesBefore,   // and has already written the log entries that precede the order
    kCoordinatorDiesWriting,  // the same, but the last line of those entries was cut off
    kCoordinatorDiesAfter,
    kShardDies,   // the shard that would get the order, or another one
    kWorkerDies,  // the worker that would get the order, or another one
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
  std::chrono::milliseconds start_deadline{60'000};
  std::chrono::milliseconds waited{0};
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
  using Kind = Order::Kind;

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
  void Pass(std::chrono::milliseconds time) {
    for (const auto end = now + time; now < end;) {
      now += std::chrono::milliseconds(100);
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
  // A worker ends its part of the generation, with an error.
  void Trouble(uint64_t id, const std::string& text, ErrorOrigin origin = {.kind = ErrorOrigin::Kind::kExchange}) {
    workers[id].ready = true;
    workers[id].computes = false;
    workers[id].trouble = text;
    workers[id].origin = origin;
    Tell(id);
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
  // Workers that have ended their part and want to leave do so. A dead shard is started again, and a new worker comes
  // if none is left.
  void Recover() {
    for (const uint64_t id : IdsOf(workers)) {
      if (workers.contains(id) && workers[id].leaves && workers[id].ready && !silent.contains(id)) Kill(id);
    }
    for (int number = 0; number < setup_.shards; ++number) {
      const auto is_it = [&](const auto& shard) { return shard.second.shard == number; };
      if (std::ranges::none_of(shards, is_it)) RestartShard(number);
    }
    if (workers.empty()) AddWorker(next_id_++);
    // A run begins with all its first workers.
    while (generation() == 0 && std::ssize(workers) < setup_.first_workers) AddWorker(next_id_++);
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
      Pass(std::chrono::milliseconds(600));
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

  std::string LogText() const {
    std::string text;
    (void)GenerationLog::Print(setup_.folder, [&](const std::string& line) { text += line + "\n"; });
    return text;
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
  std::set<uint64_t> hung;                             // as stuck, and do not end a generation that is cut
  std::set<uint64_t> unreached;                        // orders to them are lost, but kReach
  std::set<std::pair<uint64_t, std::string>> cut_off;  // workers, and addresses of shards that they do not reach
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
      // Entries that an earlier order has followed are on the disk, so they are not cut off.
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
    // A run that has ended is not begun again: the service tells every member that comes.
    if (GenerationLog::Peek(setup_.folder).progress == GenerationLog::Progress::kEnded) return;
    log_at_death_.reset();
    fault.order = -1;
    StartCoordinator();
    for (auto& [id, worker] : workers) {
      if (silent.contains(id) || worker.ready) continue;
      worker.ready = true;
      worker.computes = false;
      worker.trouble = "server: the connection was lost";
      worker.origin = {.kind = ErrorOrigin::Kind::kExchange};
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
      const bool is_lost = unreached.contains(id) && order.kind != Kind::kReach;
      if (silent.contains(id) || is_lost || !obedient) continue;
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
        worker.origin = {.kind = ErrorOrigin::Kind::kExchange};
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
    if (order.kind == Kind::kReach) {
      const auto is_cut = [&](const std::string& address) { return cut_off.contains({id, address}); };
      const bool reaches = std::ranges::none_of(order.shards, is_cut);
      worker.reached = reaches ? order.generation.number : 0;
      worker.unreached = reaches ? 0 : order.generation.number;
      worker.unreached_text = reaches ? "" : "a server cannot be reached";
      coordinator_->OnWorker(id, worker, now);
    } else if (order.kind == Kind::kStop) {
      told_to_stop_.insert(id);
    } else if (order.kind == Kind::kTrain && order.generation.number > worker.generation) {
      told_to_stop_.erase(id);
      worker.generation = order.generation.number;
      worker.ready = false;
      worker.computes = true;
      worker.trouble.clear();
      worker.origin = {};
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

}  // namespace starring

#endif  // STARRING_TESTS_SERVER_ELASTIC_PLAYED_MEMBERS_H_
