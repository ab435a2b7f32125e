#include "common/reduce/arrays/sum_server.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/reduce/arrays/reduce_machine.h"

namespace starring {

SumServer::SumServer(const ReduceStarOptions& options)
    : transport_(*options.transport),
      server_count_(options.server_count),
      worker_count_(transport_.world_size() - options.server_count),
      star_(StarOptionsOf(options, this)),
      ranks_(worker_count_) {
  CHECK(worker_count_ >= 1 && transport_.rank() >= worker_count_);
  for (int rank = 0; rank < worker_count_; ++rank) PostHead(rank);
}

void SumServer::PostHead(int rank) {
  transport_.PostReceive(rank, ReduceMachine::kHeadTag, std::as_writable_bytes(std::span(&ranks_[rank].head, 1)),
                         {.poster = this, .operation = static_cast<uint64_t>(rank)});
}

void SumServer::OnCompletion(uint64_t operation) {
  const int rank = static_cast<int>(operation);
  if (const absl::Status status = TakeHead(rank); !status.ok() && status_.ok()) status_ = status;
}

absl::Status SumServer::TakeHead(int rank) {
  const ReductionHead head = ranks_[rank].head;
  if (head.kind == ReductionHead::Kind::kEnd) {
    // No receive is posted, because a rank that has ended sends no further head.
    ++ended_count_;
    return absl::OkStatus();
  }
  if (const absl::Status valid = CheckHead(head); !valid.ok() || head.kind != ReductionHead::Kind::kSum) {
    return absl::InternalError(absl::StrCat("rank ", rank, " has sent what is no sum: ", std::string(valid.message())));
  }
  const int64_t number = ranks_[rank].number++;
  // The head was copied, so the next one may arrive in its place.
  PostHead(rank);
  const auto [found, is_first] = begun_.emplace(number, Begun{.first = {.rank = rank, .head = head}, .rank_count = 0});
  Begun& begun = found->second;
  RETURN_IF_ERROR(CheckSameHead(begun.first, {.rank = rank, .head = head}));
  if (++begun.rank_count == worker_count_) begun_.erase(found);
  // A rank has at most kReductionsMax tickets, and a sum of elements ends when all ranks have begun it. Other servers
  // may own the last sums that have ended, but each server owns one of every server_count. Sums of no elements end
  // without the other ranks, and must not fill this server's memory.
  if (std::ssize(begun_) > kReductionsMax + server_count_) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has begun ", begun_.size(),
                                                   " sums that another rank has not begun, at most ",
                                                   kReductionsMax + server_count_, " are allowed"));
  }
  const Reduction reduction = {.number = number, .head = head};
  if (!is_first || SliceOf(reduction, transport_.rank() - worker_count_, server_count_).size() == 0) {
    return absl::OkStatus();
  }
  slices_.emplace(number, head.result());
  star_.Submit(StarSumOf(reduction, server_count_));
  return absl::OkStatus();
}

StarSink::Finished SumServer::FinishAll(const StarSum& sum, const Output& output,
                                        std::span<std::byte* const> contributions) {
  SumContributions(contributions, output.range.size(), slices_.at(sum.number), output.record.data());
  return Finished::kNow;
}

}  // namespace starring
