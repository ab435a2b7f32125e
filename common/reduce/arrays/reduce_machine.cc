#include "common/reduce/arrays/reduce_machine.h"

#include <span>

#include "common/base/check.h"

namespace starring {
namespace {

// An operation's number: that of the reduction, and these.
// Numbers count from 0 and never reach 2^62, so these bits are free.
constexpr uint64_t kSendsHead = uint64_t{1} << 62;
constexpr uint64_t kReceivesHead = uint64_t{1} << 63;

}  // namespace

ReduceMachine::ReduceMachine(Transport* transport, int server_count)
    : transport_(*transport), server_count_(server_count) {
  CHECK(0 <= server_count && server_count < transport->world_size()) << server_count;
  CHECK_LT(transport->rank(), worker_count());
}

void ReduceMachine::Begin(const Reduction& reduction) {
  CHECK(in_flight_.empty() || reduction.number > in_flight_.rbegin()->first) << reduction.number;
  // With nothing in flight before, the time without progress begins here.
  if (in_flight_.empty()) NoteProgress();
  const auto [begun, is_first] =
      in_flight_.emplace(reduction.number, InFlight{.reduction = reduction, .left = {}, .missing = 0});
  ++begun_count_;
  // One call is this function's own, so that the reduction does not end before it has begun.
  Expect(reduction.number, 1);
  if (transport_.world_size() == 1) {
    // A single contribution is divided and rounded like a sum of several.
    const std::byte* const own = reduction.data;
    SumContributions({&own, 1}, reduction.head.count, reduction.head.result(), reduction.data);
  } else {
    // The heads go first: a receiver then knows what the elements are for.
    SendHeads(begun->second);
    if (reduction.head.kind == ReductionHead::Kind::kSum) Start(reduction);
  }
  Complete(reduction.number);
}

void ReduceMachine::SendHeads(InFlight& in_flight) {
  const int64_t number = in_flight.reduction.number;
  // The map leaves its entries in place, so the head stays valid until its sends are complete.
  const auto head = std::as_bytes(std::span(&in_flight.reduction.head, 1));
  const Transport::Token sent = {.poster = this, .operation = kSendsHead | static_cast<uint64_t>(number)};
  if (server_count_ > 0) {
    Expect(number, server_count_);
    // Ranks begin with different servers, so that not all send to one at a time.
    for (int i = 0; i < server_count_; ++i) {
      transport_.PostSend(worker_count() + (rank() + i) % server_count_, kHeadTag, head, sent);
    }
    return;
  }
  Expect(number, 2);
  // Every rank compares itself with its left neighbour, so a difference between any two ranks is found somewhere.
  const int left = (rank() + worker_count() - 1) % worker_count();
  transport_.PostReceive(left, kHeadTag, std::as_writable_bytes(std::span(&in_flight.left, 1)),
                         {.poster = this, .operation = kReceivesHead | static_cast<uint64_t>(number)});
  transport_.PostSend((rank() + 1) % worker_count(), kHeadTag, head, sent);
}

void ReduceMachine::OnCompletion(uint64_t operation) {
  NoteProgress();
  if (operation < kSendsHead) return Advance(operation);
  const auto number = static_cast<int64_t>(operation & ~(kSendsHead | kReceivesHead));
  if ((operation & kReceivesHead) != 0 && status_.ok()) {
    const InFlight& in_flight = in_flight_.at(number);
    const int left = (rank() + worker_count() - 1) % worker_count();
    status_ = CheckSameHead({.rank = left, .head = in_flight.left}, {.rank = rank(), .head = in_flight.reduction.head});
  }
  // A reduction on which ranks disagree must not seem complete.
  if (status_.ok() || (operation & kReceivesHead) == 0) Complete(number);
}

void ReduceMachine::Expect(int64_t number, int64_t calls) { in_flight_.at(number).missing += calls; }

void ReduceMachine::Complete(int64_t number) {
  const auto found = in_flight_.find(number);
  CHECK(found != in_flight_.end()) << number;
  if (--found->second.missing > 0) return;
  completed_.push_back(number);
  in_flight_.erase(found);
}

}  // namespace starring
