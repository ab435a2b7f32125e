// Point-to-point messages between the ranks of one job, posted now and completed later. The ring's algorithms know this
// interface only; MpiTransport is the real one, tests have one in memory.
//
// Words. An *operation* is one posted send, receive or allreduce; the caller names it with a *token*, and Poll returns
// the tokens of those that are complete. Messages of one (sender, receiver, tag) match in the order they were posted;
// otherwise any order is possible.
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
  using Token = uint64_t;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Tags are 0..tag_max(), at least 32767.
  virtual int tag_max() const = 0;
  // Whether the library says that the data of sends and receives may be memory of a GPU. It may be wrong:
  // device_path.h.
  virtual bool moves_device_memory() const { return false; }

  // `data` belongs to the transport until the token comes back: a send's must not be written, a receive's not touched.
  // A message is exactly as long as the receive that it matches.
  virtual void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) = 0;
  virtual void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) = 0;

  // sum = element-wise sum over all ranks of `contribution`, in whatever order the library likes. All ranks post their
  // allreduces in the same order. `contribution` and `sum` do not overlap.
  virtual void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) = 0;

  // Makes progress and appends the tokens of operations that completed to `completed`. Never blocks. Errors are the
  // library's own (Internal); nothing works after one.
  virtual absl::Status Poll(std::vector<Token>& completed) = 0;

  // Takes a message of any rank with `tag` if one is there, without a receive posted for it: at most data.size() bytes.
  struct Received {
    int peer = 0;
    int64_t bytes = 0;
  };
  virtual std::optional<Received> TryReceive(int tag, std::span<std::byte> data) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_TRANSPORT_H_
