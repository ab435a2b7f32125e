// Streams, events and what is captured, for the emulation's own sources.
#ifndef STARRING_TESTS_CUDA_EMULATION_STREAMS_H_
#define STARRING_TESTS_CUDA_EMULATION_STREAMS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/cuda_emulation/queues.h"

namespace starring::cuda_emulation {

// Work of a piece, without the place in a queue.
struct StreamWork {
  std::function<bool()> is_ready;
  std::function<void()> run;
  std::optional<Work> kind;  // counted as this; empty: not counted, as a part of other work
  int64_t copied_bytes = 0;
};

struct GraphNode {
  enum class Kind {
    kWork,
    kRecord,  // of `event`, for whoever waits outside of the graph
    kWait,    // for `event`, which is recorded outside of the graph
    kEdge,    // from the node `from`; -1: from what precedes the graph
  };
  int branch = 0;  // the number of its stream; 0: the stream whose capture began
  Kind kind = Kind::kWork;
  StreamWork work;
  cudaEvent_t event = nullptr;
  int from = -1;
};

struct Capture {
  std::vector<GraphNode> nodes;
  std::vector<cudaStream_t> streams;  // by branch
  std::vector<int> last_nodes;        // by branch; -1: none yet

  void Add(GraphNode node) {
    last_nodes[static_cast<size_t>(node.branch)] = static_cast<int>(nodes.size());
    nodes.push_back(std::move(node));
  }
};

// Guards the fields of events: any thread may wait for one while another launches a graph that records it.
std::mutex& EventMutex();

// Whether the calling thread captures a stream: calls that CUDA forbids meanwhile are refused.
bool IsCapturing();
void NoteCaptures(int difference);

// Does not return while the GPU hangs (Hangs).
void ReturnIfAlive();

// Counts the work, and leaves it in the queue, unless work is not run (EmulatedGpu::runs_work).
cudaError_t AppendWork(const std::shared_ptr<Queue>& queue, const StreamWork& work);

// Leaves the work in the stream, or captures it. Without a stream it runs now.
cudaError_t EnqueueWork(cudaStream_t stream, StreamWork work);

}  // namespace starring::cuda_emulation

struct CudaEmulatedStream {
  std::shared_ptr<starring::cuda_emulation::Capture> capture;
  int branch = 0;  // in the capture
  std::shared_ptr<starring::cuda_emulation::Queue> queue = std::make_shared<starring::cuda_emulation::Queue>();
};
struct CudaEmulatedEvent {
  bool is_captured = false;  // the last record was in a capture, by the default flag
  std::weak_ptr<starring::cuda_emulation::Capture> capture;
  int node = -1;                          // of the capture, after which the event is
  starring::cuda_emulation::Point point;  // if not captured
  bool was_early = false;                 // the last query came before the event; of the thread that asks
};
struct CudaEmulatedGraph {
  std::vector<starring::cuda_emulation::GraphNode> nodes;
  int branch_count = 0;
};

#endif  // STARRING_TESTS_CUDA_EMULATION_STREAMS_H_
