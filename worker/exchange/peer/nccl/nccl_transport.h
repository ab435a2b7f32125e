// A transport whose allreduces are NCCL's, between GPUs. Another transport, the *network*, carries messages: they bring
// the ranks together, and name a rank that dies, stops or gives up.
//
// NCCL knows no deadline and calls nobody back: its kernel spins until all ranks have come, for ever if one has died.
// So no call here waits for NCCL. The communicator does not block (ncclConfig_t, since NCCL 2.14): a call that is still
// *in progress* goes on in NCCL's own thread, and Poll asks how far it is.
//
//   posted    The operation is in operations_.
//   queueing  NCCL has been called. No other call may follow before that one is no longer in progress.
//   queued    The kernel is on the stream, and an event after it.
//   over      The event has passed: Poll returns the operation.
//
// Each wait of the exchange has a deadline. Abort then ends the kernel. ncclCommAbort itself may be slow, or never
// return, as where a GPU hangs. It runs on a thread of its own, which is left behind after some seconds: the process
// then says why the job ends, and not that a call hangs.
//
// Cost: a call and an event for each bucket, and a rank that waits polls, as with MPI.
//
// Thread safety: as transport.h, and Meet on the thread of the device.
#ifndef STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_TRANSPORT_H_
#define STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/allreduce_transport.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_watch.h"
#include "worker/exchange/peer/nccl/nccl_library.h"

namespace starring {

class NcclTransport final : public AllreduceTransport {
 public:
  struct Options {
    CudaDevice* gpu = nullptr;            // outlives the transport
    absl::StatusOr<NcclLibrary> library;  // an error is every rank's, in Meet
    bool may_share_gpus = false;          // NCCL_MULTI_RANK_GPU_ENABLE=1 is in the environment
    CudaWatch* watch = nullptr;           // of calls that should not block; outlives the transport; may be null
    std::chrono::nanoseconds abort_deadline = std::chrono::seconds(5);
    // Makes the rank's GPU the current one of a new thread, which has GPU 0. A program without CUDA has none.
    std::function<void()> enter_gpu;
  };
  // The memory of its GPU that NCCL takes for a communicator of two to eight ranks of a host. Nothing asks NCCL for it.
  // The buffers for sending and receiving have 4 MiB each (NCCL_BUFFSIZE), in each of up to 24 channels, and the
  // kernels and the rest of its tables some 64 MiB. Between hosts, or with variables of NCCL, it may be more.
  static constexpr int64_t kBytesEstimate = int64_t{256} << 20;

  NcclTransport(std::unique_ptr<Transport> network, Options options);
  // Calls Abort: communicators are not ended together, because that wait would have no deadline.
  ~NcclTransport() override;

  // Collective: makes the communicator. InvalidArgument, with one sentence on all ranks, where a rank has no NCCL or
  // too old a one, or another release, or where two ranks have one GPU and NCCL would refuse that. `pump` is this
  // transport's. With one rank it does nothing.
  absl::Status Meet(MessagePump& pump, const CollectiveOptions& join);

  // Ends all operations, and waits for no other rank. Poll returns them no more. May be called twice. False if NCCL has
  // not ended them in `abort_deadline`: it may still write into their spans, and this object must not be destroyed.
  [[nodiscard]] bool Abort();

  // Spans of the GPU's memory. The GPU has ended its work on `contribution`; no other stream uses `sum` before Poll has
  // returned the token. On the thread of the device.
  void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) override;

  int rank() const override { return network_->rank(); }
  int world_size() const override { return network_->world_size(); }
  int tag_max() const override { return network_->tag_max(); }
  bool loses_single_links() const override { return network_->loses_single_links(); }
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    network_->PostSend(peer, tag, data, token);
  }
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    network_->PostReceive(peer, tag, data, token);
  }
  void NeedPeer(int peer) override { network_->NeedPeer(peer); }
  absl::Status Poll(std::vector<Token>& completed) override;
  void Wait(std::chrono::microseconds longest) override;
  std::chrono::microseconds polls_for() const override;
  void Wake() override { network_->Wake(); }
  [[nodiscard]] std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    return network_->TryReceive(tag, data);
  }

 private:
  struct Operation {
    std::span<const float> contribution;
    std::span<float> sum;
    Token token;
    std::unique_ptr<CudaEvent> event;
  };

  std::string Describe() const;
  std::string Answer(const std::vector<std::string>& all) const;
  absl::Status MakeCommunicator(MessagePump& pump, const nccl::UniqueId& id, const CollectiveOptions& join);
  absl::StatusOr<bool> IsInProgress() const;
  absl::Status StatusOf(nccl::Result result, const char* call) const;
  absl::Status Advance(std::vector<Token>& completed);
  absl::Status Queue();

  const std::unique_ptr<Transport> network_;
  const Options options_;
  std::unique_ptr<CudaStream> stream_;
  nccl::Communicator communicator_ = nullptr;
  bool was_left_ = false;                           // the thread that ends it
  std::deque<Operation> operations_;                // in the order posted
  size_t queued_count_ = 0;                         // the first ones of operations_
  bool is_queueing_ = false;                        // the one after them
  std::vector<std::unique_ptr<CudaEvent>> events_;  // of operations that are over
  absl::Status error_;                              // NCCL's first
  std::chrono::steady_clock::time_point error_since_;

  std::atomic<bool> waits_for_gpu_ = false;  // for Wait, which is called without a lock
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_TRANSPORT_H_
