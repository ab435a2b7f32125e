#include "common/watch/roll_call.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// Each rank takes half a line here. No person reads more of them.
constexpr size_t kRanksDescribedMax = 4;

}  // namespace

std::string SecondsText(std::chrono::nanoseconds duration) {
  return absl::StrFormat("%.1f s", std::chrono::duration<double>(duration).count());
}

std::string NameRanks(const std::vector<int>& ranks) {
  const auto end = ranks.begin() + std::min(std::ssize(ranks), std::ptrdiff_t{kRanksNamedMax});
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.begin(), end, ", "));
  if (end != ranks.end()) absl::StrAppend(&text, " and ", ranks.end() - end, " more");
  return text;
}

std::string ProcessName(int rank, int worker_count) {
  return rank < worker_count ? absl::StrCat("rank ", rank) : absl::StrCat("server ", rank - worker_count);
}

std::string NameProcesses(const std::vector<int>& ranks, int worker_count) {
  if (std::ranges::all_of(ranks, [&](int rank) { return rank < worker_count; })) return NameRanks(ranks);
  const auto end = ranks.begin() + std::min(std::ssize(ranks), std::ptrdiff_t{kRanksNamedMax});
  std::string text = absl::StrJoin(ranks.begin(), end, ", ", [&](std::string* out, int rank) {
    absl::StrAppend(out, ProcessName(rank, worker_count));
  });
  if (end != ranks.end()) absl::StrAppend(&text, " and ", ranks.end() - end, " more");
  return text;
}

std::string StallSentence(std::chrono::nanoseconds waited, const std::string& waits_for, const std::string& root) {
  return absl::StrCat("stuck for ", SecondsText(waited), " (", waits_for, "): ", root);
}

std::string GoesOnSentence(std::chrono::nanoseconds waited) {
  return absl::StrCat("the job goes on after ", SecondsText(waited));
}

void RollCall::OnHeard(int rank, const WorkState& state, Time now) {
  // Any report of the rank closes the open question: it shows that the process runs and that a connection reaches it.
  ranks_[rank] = {.heard = Heard{.state = state, .at = now}, .answered = now, .asked = std::nullopt};
}

void RollCall::OnHearsay(int rank, const WorkState& state, Time heard_at) {
  std::optional<Heard>& heard = ranks_[rank].heard;
  // `answered` and `asked` stay: that another process has heard the rank does not show that this one can reach it.
  if (!heard.has_value() || heard->at < heard_at) heard = {.state = state, .at = heard_at};
}

std::vector<int> RollCall::TakeRanksToAsk(Time now) {
  std::vector<int> to_ask;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    // One question at a time: a process that was stopped must not find a pile of them when it goes on.
    if (rank.asked.has_value() || (rank.answered.has_value() && now - *rank.answered < times_.patience())) continue;
    // From now on the rank counts as silent once its patience is over; any report of its own ends that.
    rank.asked = now;
    to_ask.push_back(static_cast<int>(i));
  }
  return to_ask;
}

bool RollCall::IsSilent(int rank, Time now) const {
  // A rank that was never asked is not silent, however old its last report is: it may have had nothing to report.
  const std::optional<Time>& asked = ranks_[rank].asked;
  return asked.has_value() && now - *asked >= times_.patience();
}

std::chrono::milliseconds RollCall::AgeOf(const Heard& heard, Time now) const {
  // The age that the rank reported, and the time since then by this process's clock: only durations travel, so clocks
  // of different machines are never compared.
  return heard.state.age + std::chrono::duration_cast<std::chrono::milliseconds>(now - heard.at);
}

std::string RollCall::DescribeSilent(int rank, Time now) const {
  const std::optional<Heard>& heard = ranks_[rank].heard;
  const std::string name = ProcessName(rank, worker_count_);
  // A server speaks when it is asked, and always waits for workers: what it was doing says nothing.
  if (rank >= worker_count_) return absl::StrCat(name, " does not answer");
  if (!heard.has_value()) return absl::StrCat(name, " does not answer, and has not been heard so far");
  const std::string ago = SecondsText(now - heard->at);
  return absl::StrCat(name, " does not answer: when last heard, ", ago, " ago, it was ", DescribeWork(heard->state));
}

std::string RollCall::DescribeBusy(int rank, Time now) const {
  const Heard& heard = *ranks_[rank].heard;
  if (heard.state.phase == WorkPhase::kUnknown) return absl::StrCat("rank ", rank, " answers, and is computing");
  return absl::StrCat("rank ", rank, " answers, and has been ", DescribeWork(heard.state), " for ",
                      SecondsText(AgeOf(heard, now)));
}

template <typename Describe>
std::string RollCall::DescribeAll(const std::vector<int>& ranks, Describe describe) const {
  std::string all;
  for (size_t i = 0; i < ranks.size() && i < kRanksDescribedMax; ++i) {
    absl::StrAppend(&all, i == 0 ? "" : "; ", describe(ranks[i]));
  }
  if (ranks.size() > kRanksDescribedMax) {
    absl::StrAppend(&all, "; and so for ", ranks.size() - kRanksDescribedMax, " more ranks");
  }
  return all;
}

std::optional<RollCall::Root> RollCall::FindRoot(Time now) const {
  // One pass over the ranks, which gives up as long as any rank may still answer. The rest judges what it has
  // collected, in this order: silent ranks, the busy ranks of the lowest step, a silent server, the network.
  std::vector<int> silent;
  std::vector<int> busy;  // of the lowest step
  int64_t lowest_step = 0;
  int waiting_for_server = -1;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const Rank& rank = ranks_[r];
    if (IsSilent(r, now)) {
      silent.push_back(r);
      continue;
    }
    // A report that is older than two questions is no answer, nor is any report while a newer question is open: the
    // verdict must wait, or it would name a rank by what it did before.
    if (rank.asked.has_value() || !rank.answered.has_value() || now - *rank.answered > 2 * times_.patience()) {
      return std::nullopt;
    }
    const WorkState& state = rank.heard->state;
    if (state.silent_shard >= 0) waiting_for_server = r;
    if (state.phase == WorkPhase::kExchange) continue;
    // A rank of a later step waits for the contributions of this one, so only the lowest step can be the cause.
    if (busy.empty() || state.step < lowest_step) {
      busy.clear();
      lowest_step = state.step;
    }
    if (state.step == lowest_step) busy.push_back(r);
  }
  if (!silent.empty()) {
    return Root{.ranks = silent, .sentence = DescribeAll(silent, [&](int r) { return DescribeSilent(r, now); })};
  }
  if (!busy.empty()) {
    // A rank that has changed its phase lately makes progress. If all of them do, the job is slow, and no rank is
    // named. The age of an unknown phase, which a peer of another build may report, says nothing.
    std::erase_if(busy, [&](int r) {
      const Heard& heard = *ranks_[r].heard;
      return heard.state.phase != WorkPhase::kUnknown && AgeOf(heard, now) < times_.report_after;
    });
    if (busy.empty()) return std::nullopt;
    return Root{.ranks = busy, .sentence = DescribeAll(busy, [&](int r) { return DescribeBusy(r, now); })};
  }
  if (waiting_for_server >= 0) {
    return Root{
        .ranks = {},
        .sentence = absl::StrCat("rank ", waiting_for_server, " waits for the server of shard ",
                                 ranks_[waiting_for_server].heard->state.silent_shard, ", which does not answer")};
  }
  return Root{.ranks = {}, .sentence = "all ranks answer, and wait in the exchange: look at the network between them"};
}

}  // namespace starring
