// What turns submitted gradients into new parameters, bucket by bucket, driven by a transport's completions: the ring's
// own reduce-scatter and allgather (ring_machine.h), or the library's allreduce as a control (allreduce_machine.h).
//
// A machine never waits, knows no thread and no clock. Thread safety: none; one thread at a time.
#ifndef STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_

#include <cstdint>
#include <span>

#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/peer/transport.h"

namespace starring {

class BucketMachine {
 public:
  // Tokens of a machine's operations are below this; those of others are not.
  static constexpr Transport::Token kTokenEnd = Transport::Token{1} << 62;

  virtual ~BucketMachine() = default;

  // As GradientExchange::Submit.
  virtual void Submit(int64_t step, int bucket, std::span<const float> gradient) = 0;

  // One of this machine's operations is complete.
  virtual void OnCompletion(Transport::Token token) = 0;

  // True when the gradient of `bucket` may be written and its parameters be read: nothing of it is in flight but
  // parameters on their way to a neighbour.
  virtual bool IsReady(int bucket) const = 0;

  // True when nothing is in flight.
  virtual bool IsIdle() const = 0;

  // The bucket that has been in flight longest. REQUIRES: !IsIdle().
  struct InFlight {
    int64_t step = 0;
    int bucket = 0;
  };
  virtual InFlight Oldest() const = 0;

  virtual ExchangeCounters counters() const = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_BUCKET_MACHINE_H_
