// Point-to-point messages between the ranks of one job, posted now and completed later. The exchange's algorithms know
// this interface only. MpiTransport (mpi_runtime.h) is the real one; tests have one in memory.
//
// Words. An *operation* is one posted send, receive or allreduce. Its *poster* is the object that posted it and gave it
// a number; Poll returns poster and number of every operation that has completed. Several posters use one transport:
// the bucket machine for gradients and parameters, the message pump for everything else. Messages of one (sender,
// receiver, tag) match in the order in which they were posted; otherwise any order is possible.
//
// Thread safety: none; one thread at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_TRANSPORT_H_
#define STARRING_WORKER_EXCHANGE_PEER_TRANSPORT_H_

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
  };

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Tags are 0..tag_max(), at least 32767.
  virtual int tag_max() const = 0;
  // Whether the library claims that the data of sends and receives may be memory of a GPU. The claim may be wrong:
  // cuda_aware/cuda_aware_owner.h tests it.
  virtual bool moves_device_memory() const { return false; }

  // `data` belongs to the transport until Poll returns the token: a send's data must not be written, a receive's not
  // touched. A message is exactly as long as the receive that it matches.
  virtual void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) = 0;
  virtual void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) = 0;

  // sum = element-wise sum over all ranks of `contribution`, in the order that the library chooses. All ranks post
  // their allreduces in the same order. `contribution` and `sum` do not overlap.
  virtual void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) = 0;

  // Makes progress and appends the tokens of operations that have completed to `completed`. Never blocks. Errors are
  // the library's own (Internal); nothing works after one.
  virtual absl::Status Poll(std::vector<Token>& completed) = 0;

  // Takes a message of any rank with `tag` if one has arrived, without a receive posted for it: at most data.size()
  // bytes. If the library fails, the next Poll returns its error.
  struct Received {
    int peer = 0;
    int64_t bytes = 0;
  };
  [[nodiscard]] virtual std::optional<Received> TryReceive(int tag, std::span<std::byte> data) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_TRANSPORT_H_
