// The star: every process sends its contribution to a slice straight to the slice's owner, and the owner sends the
// result straight to every process that contributes. The owners are the ranks, or servers. MPI libraries call the first
// half "pairwise exchange" (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH", 2005). It adds a bucket of the parameter vector, whose sum the optimizer turns into parameters, and an array
// of PyTorch, whose sum is divided and rounded: StarSink says which.
//
// Words. *Workers* are the processes that contribute: all ranks but the servers. A slice travels in *pieces*, those of
// a *stride* together (star_pieces.h). A *contribution* is one worker's part of a piece, an *answer* its result.
//
//   contribute  A worker sends its contributions stride by stride, and in a stride first to the rank before it, or
//               first to server r mod S. So not all send to one owner at a time. While the ranks keep step, no rank
//               receives from two at a time: every distance is a permutation of the ranks.
//   add         The owner takes the contributions into its memory, and adds them in the order of the sum (owner.h).
//   answer      The owner sends the result to the rank after it first, and so on.
//
// Where bytes are. A contribution is sent from the sink's array, and an answer is received at its place. The receive of
// an answer is posted with the contribution, so no answer comes to a process that does not expect it. There are two
// exceptions. The ranges of a piece that has several are *packed* in memory of the star; its answer arrives in the same
// memory, and the receive is posted when the contribution has been sent. And a worker that has mapped the owner's
// memory writes into that and reads from it: the messages have no bytes.
//
// Cost of L elements with N ranks as owners: every rank sends and receives 2 L (N - 1) / N elements, as in a ring, but
// only two messages follow one after the other, where a ring has 2 (N - 1). It adds L (N - 1) / N elements. With S
// servers each worker sends and receives L elements, and each server N L / S. A worker with q nodes sends q times as
// much. An allgather in log2 N steps would need fewer messages, but each of its steps waits for another rank's.
//
// Limits. To one owner a worker has as many pieces on their way, contributed and not answered, as the owner has slots.
// A process has a window of bytes in contributions whose sends are not complete, and one in answers. Answers must not
// wait for contributions: those may be to strides that are received only after the answers.
//
// There is no deadlock. All processes submit their sums in one order. Take the first stride, and in it the smallest
// distance, of which a contribution has not been received. All contributions before it have been received and added. So
// the pieces before it have results, and the answers leave: their receives are posted with the contributions that they
// answer. The contributions that its sender has on their way are not earlier, so it is among them, or there is a place
// for it in the window and at its owner. And the owner has a slot and a place for it.
//
// A star never waits, starts no thread and reads no clock but for traces. Thread safety: one thread at a time.
#ifndef STARRING_COMMON_REDUCE_STAR_H_
#define STARRING_COMMON_REDUCE_STAR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/base/element_range.h"
#include "common/base/limits.h"
#include "common/reduce/order.h"
#include "common/reduce/owner.h"
#include "common/reduce/star_memory.h"
#include "common/reduce/star_pieces.h"
#include "common/reduce/star_sink.h"
#include "common/transport/transport.h"

namespace starring {

class Star final : public Transport::Poster {
 public:
  struct Options {
    Transport* transport = nullptr;
    StarSink* sink = nullptr;
    int server_count = 0;                       // the last ranks of the world are the owners; 0: all ranks are
    int first_tag = 0;                          // the star uses tags from here on
    std::vector<StarContributor> contributors;  // in the order of the sum; a worker's nodes are all there are of it
    Order::Plan plan = Order::Plan::kAll;
    // As StarPieces. Nodes of micro-batches cannot be packed: 0.
    int64_t message_bytes_max = 0;
    Owner::PieceSizes sizes;
    int slot_count = 1;  // of every owner; fewer are used where there are few tags
    // The bytes of contributions, and those of answers, whose sends are not complete, for each slot. 0: no limit; then
    // a worker asks each owner by itself, so that one that is slow does not hold up its questions to the others.
    int64_t window_bytes = kStarWindowBytes;
    // Packed contributions to several owners are sent after one StarSink::Complete for all of them. Otherwise each is
    // sent as soon as it is packed.
    bool packs_together = false;
    // Whether an owner's sink has places for results. It must at a worker.
    bool owners_have_results = true;
    // Whether a sum's result replaces that of the sum before it with its number, and so must not be made before that
    // has been sent.
    bool results_are_replaced = true;
    // As Owner::Options. Contributions that vary are neither packed nor in shared memory; an encoded one may be shorter
    // than its piece.
    bool answers_differ = false;
    bool contributions_vary = false;
    TraceTrack* track = nullptr;  // of the thread that drives the star; null: there is no trace
    // An owner's own memory; none: the sink allocates it.
    std::optional<StarMemory> memory;
    // The memory of each owner, mapped by this process; at an owner `memory` is among them. Empty: messages have the
    // elements.
    std::vector<StarMemory> shared;
    bool is_shared = false;  // the others have mapped this owner's memory
  };
  // REQUIRES: the objects to which the options refer outlive the star; there are two processes or more.
  explicit Star(const Options& options);

  // Begins a sum. All processes submit their sums in one order. Does not wait. REQUIRES: it is not empty, and at a
  // server its slice is not.
  void Submit(const StarSum& sum);
  void OnCompletion(uint64_t operation) override;
  // The sink has finished what it wanted to finish later: a range of Output::piece. Not called by a call of the sink.
  void OnFinished(int piece);
  // Posts nothing any more: the job has failed.
  void Stop() { is_stopped_ = true; }

  // The sum that has been in flight longest; null if none is.
  const StarSum* Oldest() const { return sums_.empty() ? nullptr : &sums_.begin()->second.sum; }
  // The bytes of contributions and answers since the star was made, in either direction; also where shared memory
  // carries them.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

 private:
  enum class Kind { kContributionSend, kAnswerReceive, kContributionReceive, kAnswerSend };
  // An operation. `slot` is the owner's slot, and for kAnswerSend an index of answering_. `peer` is an owner, the
  // number of an arrival, or a rank.
  struct Operation {
    Kind kind = Kind::kContributionSend;
    int slot = 0;
    int peer = 0;
  };
  struct InFlight {
    InFlight(int64_t number, const StarSum& submitted, int64_t message_bytes_max)
        : id(number), sum(submitted), pieces(&sum, message_bytes_max) {}
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    const int64_t id;
    const StarSum sum;
    const StarPieces pieces;
    int64_t tag_set = 0;
    // Operations that are not complete, own pieces without a result, and one each while this process as a worker, and
    // as an owner, has not begun all its pieces.
    int64_t unready = 0;
    int64_t unfinished = 0;    // answers that are sent
    int64_t submitted_ns = 0;  // with a track
  };
  // Where in the sums a process is that goes through their pieces.
  struct Cursor {
    int64_t id = 0;  // of a sum
    int64_t stride = 0;
    int next = 0;  // in the stride: the next owner, in this worker's order
  };
  // A piece that this worker has sent to an owner.
  struct Asked {
    InFlight* in_flight = nullptr;  // null: none is
    int64_t stride = 0;
    StarPieces::Piece piece;
    std::span<std::byte> packed;  // empty: the piece has one range
    int unsent = 0;               // contributions
    bool is_answered = false;
  };
  struct OwnersSlot {
    int owner = 0;
    int slot = 0;
  };
  // The result of a piece of this owner, on its way.
  struct Answering {
    InFlight* in_flight = nullptr;  // null: free
    int slot = 0;
    bool is_in_slot = false;
    std::span<const std::byte> result;
    int unsent = 0;
    std::vector<int64_t> posted_ns;  // by rank, with a track
  };
  struct Answer {
    int index = 0;  // of answering_
    int rank = 0;
  };

  void AllocateMemory();
  // Posts what can be posted, as a worker only at these cursors.
  void Proceed(std::span<Cursor> asking);
  // The cursors that may go on now.
  std::span<Cursor> AskingOf(const Operation& completed);

  // This process as a worker.
  bool AskNext(Cursor& cursor);
  void Ask(int owner);
  void Pack(const Asked& asked, int owner);
  void SendContributions(int owner, int slot);
  void SendPacked();
  void CopyToOwner(const Asked& asked, int owner, int slot, int contributor, std::span<const std::byte> message);
  void OnContributionSent(int owner, int slot);
  void ReceiveAnswer(int owner, int slot);
  void OnAnswer(int owner, int slot);
  void TakeAnswer(const Asked& asked, int owner, int slot);
  static void FreeIfOver(Asked& asked);
  std::span<std::byte> PackedOf(int owner, int slot, int64_t bytes) const;

  // This process as an owner.
  bool BeginNextPiece();
  bool IsRepeated(const InFlight& in_flight) const;
  void PostReceives(int slot);
  void OnContribution(int slot, int arrival);
  void OnState(int slot, Owner::State state);
  void BeginAnswers(int slot);
  bool SendAnswer();
  void OnAnswerSent(int index, int rank);

  InFlight* SumAt(Cursor& cursor);
  void CountReady(InFlight& in_flight);
  void EndIfDone(InFlight& in_flight);
  // Whether so many bytes more may be sent where `sending` bytes are.
  bool HasWindowFor(int64_t bytes, int64_t sending) const {
    return window_bytes_ == 0 || sending == 0 || sending + bytes <= window_bytes_;
  }

  void Send(int rank, int tag, Operation operation, std::span<const std::byte> data);
  void Receive(const InFlight& in_flight, int rank, Operation operation, std::span<std::byte> data,
               int64_t* bytes = nullptr);
  enum class Way { kContributions, kAnswers };
  int TagOf(const InFlight& in_flight, int slot, Way way) const;
  Transport::Token TokenOf(Operation operation);
  int64_t& PostedNs(Operation operation);
  void TraceFlight(const StarSum& sum, int rank, Operation operation);

  int worker_count() const { return worker_count_; }
  bool is_worker() const { return rank_ < worker_count(); }
  int owner_count() const { return options_.server_count > 0 ? options_.server_count : worker_count(); }
  int RankOf(int owner) const { return options_.server_count > 0 ? worker_count() + owner : owner; }
  int own_rank_of(int owner) const { return options_.server_count > 0 ? -1 : owner; }
  // The i-th owner of a stride, in this worker's order; without this process.
  int OwnerAt(int i) const;
  int PlaceOf(int owner) const;  // i of OwnerAt(i)
  int other_owner_count() const { return owner_count() - (options_.server_count > 0 ? 0 : 1); }
  // The rank of the i-th answer.
  int AnswerRank(int i) const;
  int answer_count() const { return worker_count() - (is_worker() ? 1 : 0); }

  const Options options_;
  Transport& transport_;
  StarSink& sink_;
  const int rank_;
  const int worker_count_;
  const int slot_count_;
  const int64_t window_bytes_;
  std::vector<int> own_contributors_;  // by this worker's nodes: the contributor
  int64_t tag_sets_ = 1;

  std::map<int64_t, InFlight> sums_;  // by id, in the order in which they were submitted
  int64_t next_id_ = 0;

  std::vector<Cursor> asking_;                 // one, or by owner
  std::vector<std::vector<Asked>> asked_;      // by owner and slot
  std::vector<int> next_slot_;                 // by owner
  std::vector<std::span<std::byte>> packing_;  // by owner and slot, if pieces may be packed
  std::vector<OwnersSlot> packed_;             // contributions that SendPacked sends

  std::optional<Owner> owner_;
  int own_number_ = -1;  // among the owners
  Cursor owning_;
  std::vector<InFlight*> owned_;  // by slot: the sum of the piece
  std::vector<Answering> answering_;
  std::deque<Answer> answers_;  // that wait for the window

  bool is_stopped_ = false;
  int64_t asking_bytes_ = 0;     // of contributions whose sends are not complete
  int64_t answering_bytes_ = 0;  // of answers
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
  std::vector<int64_t> posted_ns_;  // by operation, with a track
};

}  // namespace starring

#endif  // STARRING_COMMON_REDUCE_STAR_H_
