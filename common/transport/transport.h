// Point-to-point messages between the ranks of one job, posted now and completed later. The exchange's algorithms know
// this interface only. There are two networks: MPI (common/transport/mpi/mpi_transport.h) and TCP (tcp_transport.h);
// tests have one in memory.
//
// Words. An *operation* is one posted send or receive. Its *poster* is the object that posted it and gave it a number;
// Poll returns poster and number of every operation that has completed. Several posters use one transport: the bucket
// machine for gradients and parameters, the message pump for everything else. Messages of one (sender, receiver, tag)
// match in the order in which they were posted; otherwise any order is possible.
//
// A send may complete before its receive is posted. The transport then keeps the message, so an algorithm must bound
// how far a sender runs ahead of its receiver.
//
// Thread safety: one thread at a time, except Wait and Wake, which any thread may call while another thread is in any
// method but the destructor.
#ifndef STARRING_COMMON_TRANSPORT_TRANSPORT_H_
#define STARRING_COMMON_TRANSPORT_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace starring {

class Transport {
 public:
  class Poster {
   public:
    // The operation to which this poster gave the number `operation` has completed. Called by the object that
    // polls.
    virtual void OnCompletion(uint64_t operation) = 0;

   protected:
    ~Poster() = default;
  };
  struct Token {
    Poster* poster = nullptr;  // outlives the operation
    uint64_t operation = 0;
    // Null: the message is exactly as long as its receive. Else, at a receive: the message may be shorter, and
    // its length is here once Poll has returned the token. Outlives the operation.
    int64_t* bytes = nullptr;
  };

  // Messages with this tag are *notices*: no receive is posted for them, and TryReceive takes them. A transport may
  // send them on a connection of their own, where they do not wait for other messages.
  static constexpr int kNoticeTag = 0;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Tags are 0..tag_max(), at least 32767.
  virtual int tag_max() const = 0;

  // `data` belongs to the transport until Poll returns the token: a send's data must not be written, a receive's not
  // touched. A message is as long as the receive that it matches, or shorter where the receive's token allows it.
  virtual void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) = 0;
  virtual void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) = 0;

  // This rank waits for `peer` in another way than by a receive: if `peer` has left the job, Poll fails as if a receive
  // were posted.
  virtual void NeedPeer(int /*peer*/) {}

  // Makes progress and appends the tokens of operations that have completed to `completed`. Never blocks. An error is
  // Unavailable if a peer or the network is gone, otherwise Internal; nothing works after one.
  virtual absl::Status Poll(std::vector<Token>& completed) = 0;

  // Sleeps until Poll or TryReceive may find something, until Wake has been called since the last return, or for
  // `longest`. May return early. The caller does not hold the lock under which other threads poll and post, unless no
  // other thread asks for that lock.
  virtual void Wait(std::chrono::microseconds longest) = 0;
  // For how long a wait should rather poll than call Wait, as long as no other thread wants the core: not at all where
  // an arrival ends Wait, and long where messages move only while Poll is called.
  virtual std::chrono::microseconds polls_for() const { return std::chrono::microseconds(0); }
  // Whether two ranks may lose each other while a third one still reaches both.
  virtual bool loses_single_links() const { return false; }
  // Ends a Wait, or the next one if no thread is in Wait.
  virtual void Wake() = 0;

  // Takes a message of any rank with `tag` if one has arrived, without a receive posted for it: at most data.size()
  // bytes. If the library fails, the next Poll returns its error.
  struct Received {
    int peer = 0;
    int64_t bytes = 0;
  };
  [[nodiscard]] virtual std::optional<Received> TryReceive(int tag, std::span<std::byte> data) = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TRANSPORT_H_
