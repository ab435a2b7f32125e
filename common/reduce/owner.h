// The owner of a slice of each sum of a star (star.h): takes the contributions to its pieces into memory, has them
// added in the order of the sum, and has the result made from it. It works piece by piece, each at most one message.
//
// An owner knows no network: its user takes the messages to the places that NextReceive names, and sends the results.
// Pieces in flight have *slots*, which are used in turn. So contributor and owner know the slot of a piece without
// telling each other.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_COMMON_REDUCE_OWNER_H_
#define STARRING_COMMON_REDUCE_OWNER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/metrics/trace.h"
#include "common/reduce/order.h"
#include "common/reduce/release.h"
#include "common/reduce/star_memory.h"
#include "common/reduce/star_pieces.h"
#include "common/reduce/star_sink.h"

namespace starring {

// One summand of a sum, and the rank that sends it. A rank that computes several nodes of the sum's tree sends one for
// each of them.
struct StarContributor {
  int rank = 0;
  int node = 0;  // which of the rank's
};
// One node of every rank.
std::vector<StarContributor> OneOfEachRank(int rank_count);

// Where processes that map an owner's memory find their places, with the plan kAll: the contributions that come from
// other processes are in the order of the sum, and the result follows. `own_rank` is the owner's, or -1 at a server.
int PlaceOfContribution(std::span<const StarContributor> contributors, int own_rank, int contributor);
int PlaceOfResult(std::span<const StarContributor> contributors, int own_rank);

class Owner {
 public:
  struct Options {
    StarSink* sink = nullptr;
    int owner = 0;  // among the owners of each sum
    int rank_count = 1;
    // Whether rank `owner` is this process. Otherwise this process is a server, which has no contribution.
    bool contributes = true;
    // Whether the sink has places for results (StarSink::Result). Otherwise they are in the slots.
    bool has_results = true;
    bool answers_differ = false;      // from the records; then they are in the slots
    bool contributions_vary = false;  // some are shorter than their pieces. REQUIRES: kAll, and is_shared is false
    std::vector<StarContributor> contributors;  // in the order of the sum
    Order::Plan plan = Order::Plan::kAll;       // REQUIRES: kAll, or one contribution of every rank, and no server
    int64_t window_bytes = 0;                   // of contributions on their way to one piece; at least one may be
    // The slots. Other processes have mapped them if is_shared; then results are copied to them.
    StarMemory memory;
    bool is_shared = false;
    TraceTrack* track = nullptr;  // of the thread that calls; null: there is no trace
  };
  // REQUIRES: the objects to which the options refer outlive the owner; another rank than this process contributes.
  explicit Owner(Options options);

  // The bytes of a slot.
  struct PieceSizes {
    int64_t piece_bytes_max = 0;
    int64_t joined_bytes_max = 0;      // of pieces with several chunks of one block; 0: there are none
    bool have_several_ranges = false;  // some pieces have
  };
  static int64_t SlotBytes(const Options& options, const PieceSizes& sizes);

  // The slot of the next piece is free.
  bool CanBegin() const { return !slots_[next_slot_].is_used; }
  // Begins this owner's piece of a stride and returns its slot. `pieces` outlive the piece. REQUIRES: CanBegin(), and
  // the piece is not empty.
  int Begin(const StarPieces& pieces, int64_t stride);

  // The contribution that may come next to the piece, and its place. None if the owner has no place for one now, or
  // all have been named.
  struct Receive {
    int arrival = 0;
    int rank = 0;
    std::span<std::byte> place;
    int64_t* bytes = nullptr;  // if contributions vary: for the length of this one
  };
  std::optional<Receive> NextReceive(int slot);
  // That contribution is in its place.
  enum class State { kTaking, kFinishing, kSealed };  // of a piece: kFinishing waits for the sink's OnFinished
  [[nodiscard]] State OnArrival(int slot, int arrival);
  // The sink has finished a range of the piece that it wanted to finish later.
  [[nodiscard]] State OnFinished(int slot);
  int arrival_count() const { return static_cast<int>(arrivals_.size()); }
  // The length of a contribution that is here.
  int64_t BytesOf(int slot, int arrival) const {
    return options_.contributions_vary ? slots_[slot].lengths[arrival] : slots_[slot].piece.bytes;
  }
  int RankOf(int arrival) const { return options_.contributors[arrivals_[arrival]].rank; }

  // The result as a message: at the sink's place, or in the slot, which must then not be freed before the result is
  // used up. REQUIRES: the piece is sealed.
  bool ResultIsInSlot(int slot) const { return ResultIsInSlot(slots_[slot]); }
  std::span<const std::byte> Result(int slot) const;
  void Free(int slot);

 private:
  struct Slot {
    bool is_used = false;
    int memory = 0;                      // of options_.memory: the slot's memory
    const StarPieces* pieces = nullptr;  // of its sum
    int64_t stride = 0;
    StarPieces::Piece piece;
    Order::Plan plan = Order::Plan::kAll;
    int result_place = 0;
    Order order;
    int here = 0;                  // contributions, the own one among them
    int unfinished = 0;            // ranges that the sink finishes later
    std::vector<int64_t> lengths;  // of contributions by arrival, if they vary
  };

  int own_rank() const { return options_.contributes ? options_.owner : -1; }
  static Order::Options OrderOptions(const Options& options, const std::vector<int>& arrivals);
  static int WindowOf(const Options& options, int64_t piece_bytes);
  std::span<std::byte> Place(const Slot& slot, int place) const;
  bool ResultIsInSlot(const Slot& slot) const;
  void Add(const Slot& slot, int from, int into);
  void Finish(Slot& slot);
  StarSink::Finished FinishRange(const Slot& slot, const StarSink::Output& output, int64_t at_bytes);

  const Options options_;
  const Release release_;
  const std::vector<int> arrivals_;  // the contributors whose contributions come, in the order in which they are taken
  std::vector<int> places_;          // by contributor, with kAll; the own ones have none
  std::vector<Slot> slots_;
  int next_slot_ = 0;
  // Memory that no slot uses now. The end was used last, so it may still be in the caches. Empty with shared memory,
  // where other processes know a place by its slot.
  std::vector<int> free_memory_;
  std::vector<std::byte*> terms_;  // of a sum, by contributor
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_OWNER_H_
