// Captures and graphs. A captured stream is a branch; a launch gives each branch a queue, and the events by which
// branches wait for each other are edges between the queues.
#include <cuda_runtime.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/queues.h"
#include "tests/cuda_emulation/streams.h"

namespace starring::cuda_emulation {
namespace {

// The launch, from 1, that the environment names; 0: none.
int LaunchOf(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

// Counts a launch of a graph, which may be the last thing that this GPU or this process does.
void CountLaunch() {
  static const int hangs_at = LaunchOf("EMULATED_GPU_HANGS_AT_LAUNCH");
  static const int stops_at = LaunchOf("EMULATED_GPU_STOPS_AT_LAUNCH");
  static const int gives_nans_at = LaunchOf("EMULATED_GPU_NANS_AT_LAUNCH");
  static const int dies_at = LaunchOf("EMULATED_GPU_DIES_AT_LAUNCH");
  static std::atomic<int> count = 0;
  const int launch = ++count;
  if (launch == hangs_at) Hangs() = true;
  if (launch == gives_nans_at) GivesNans() = true;
  if (launch == stops_at) kill(getpid(), SIGSTOP);
  if (launch == dies_at) kill(getpid(), SIGKILL);
}

// Whether all work of the branches precedes the end of the stream whose capture began.
bool IsJoined(const Capture& capture) {
  std::vector<int> joined(capture.streams.size(), -1);  // by branch: the last node that does
  joined[0] = capture.last_nodes[0];
  for (int i = static_cast<int>(capture.nodes.size()) - 1; i >= 0; --i) {
    const GraphNode& node = capture.nodes[static_cast<size_t>(i)];
    const bool is_edge = node.kind == GraphNode::Kind::kEdge;
    if (i > joined[static_cast<size_t>(node.branch)]) {
      if (!is_edge) return false;
    } else if (is_edge && node.from >= 0) {
      int& other = joined[static_cast<size_t>(capture.nodes[static_cast<size_t>(node.from)].branch)];
      other = std::max(other, node.from);
    }
  }
  return true;
}

cudaError_t LaunchNode(const GraphNode& node, const std::shared_ptr<Queue>& queue, const Point& from) {
  switch (node.kind) {
    case GraphNode::Kind::kWork:
      return AppendWork(queue, node.work);
    case GraphNode::Kind::kEdge:
      return Append(queue, {.follows = from});
    case GraphNode::Kind::kRecord: {
      CountEvent();
      const std::lock_guard<std::mutex> lock(EventMutex());
      node.event->is_captured = false;
      node.event->point = EndOf(queue);
      return cudaSuccess;
    }
    case GraphNode::Kind::kWait: {
      CountEvent();
      const std::lock_guard<std::mutex> lock(EventMutex());
      return Append(queue, {.follows = node.event->point});
    }
  }
  return cudaErrorInvalidValue;
}

cudaError_t Launch(const CudaEmulatedGraph& graph, const std::shared_ptr<Queue>& queue) {
  // All at once, so that the order of asynchronous branches depends on the seed and not on the host's speed.
  const Pause pause;
  std::vector<std::shared_ptr<Queue>> queues = {queue};
  while (std::ssize(queues) < graph.branch_count) queues.push_back(std::make_shared<Queue>());
  const Point begin = EndOf(queue);
  std::vector<Point> ends;  // of nodes
  for (const GraphNode& node : graph.nodes) {
    const auto& branch = queues[static_cast<size_t>(node.branch)];
    const Point& from = node.from < 0 ? begin : ends[static_cast<size_t>(node.from)];
    if (const cudaError_t error = LaunchNode(node, branch, from); error != cudaSuccess) return error;
    ends.push_back(EndOf(branch));
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace starring::cuda_emulation

using starring::cuda_emulation::Append;
using starring::cuda_emulation::Capture;
using starring::cuda_emulation::CountLaunch;
using starring::cuda_emulation::EndOf;
using starring::cuda_emulation::EventMutex;
using starring::cuda_emulation::GraphNode;
using starring::cuda_emulation::IsJoined;
using starring::cuda_emulation::NoteCaptures;
using starring::cuda_emulation::ReturnIfAlive;

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const std::lock_guard<std::mutex> lock(EventMutex());
  if (flags == cudaEventWaitExternal) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    stream->capture->Add({.branch = stream->branch, .kind = GraphNode::Kind::kWait, .event = event});
    return cudaSuccess;
  }
  if (!event->is_captured) {
    // CUDA refuses a capture that depends on work outside of it.
    if (stream->capture != nullptr) return cudaErrorInvalidValue;
    return event->point.queue == nullptr ? cudaSuccess : Append(stream->queue, {.follows = event->point});
  }
  const std::shared_ptr<Capture> capture = event->capture.lock();
  if (capture == nullptr) return cudaErrorCapturedEvent;
  if (stream->capture == nullptr) {  // a fork
    stream->capture = capture;
    stream->branch = static_cast<int>(capture->streams.size());
    capture->streams.push_back(stream);
    capture->last_nodes.push_back(-1);
  } else if (stream->capture != capture) {
    return cudaErrorInvalidValue;
  }
  capture->Add({.branch = stream->branch, .kind = GraphNode::Kind::kEdge, .from = event->node});
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const std::lock_guard<std::mutex> lock(EventMutex());
  if (flags == cudaEventRecordExternal) {
    if (stream->capture == nullptr) return cudaErrorInvalidValue;
    stream->capture->Add({.branch = stream->branch, .kind = GraphNode::Kind::kRecord, .event = event});
    return cudaSuccess;
  }
  if (stream->capture == nullptr) {
    *event = {.point = EndOf(stream->queue)};
  } else {
    *event = {.is_captured = true,
              .capture = stream->capture,
              .node = stream->capture->last_nodes[static_cast<size_t>(stream->branch)]};
  }
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->capture = std::make_shared<Capture>(Capture{.streams = {stream}, .last_nodes = {-1}});
  stream->branch = 0;
  NoteCaptures(1);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  if (stream->branch != 0) return cudaErrorStreamCaptureUnmatched;
  NoteCaptures(-1);
  const std::shared_ptr<Capture> capture = stream->capture;
  for (const cudaStream_t branch : capture->streams) branch->capture = nullptr;
  if (!IsJoined(*capture)) return cudaErrorStreamCaptureUnjoined;
  *graph = new CudaEmulatedGraph{.nodes = std::move(capture->nodes),
                                 .branch_count = static_cast<int>(capture->streams.size())};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  ReturnIfAlive();
  *executable = new CudaEmulatedGraph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ReturnIfAlive();
  CountLaunch();
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  starring::cuda_emulation::CountGraphLaunch();
  return starring::cuda_emulation::Launch(*executable, stream->queue);
}

// An executable graph is the same type here: one function destroys both.
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  ReturnIfAlive();
  return cudaGraphDestroy(executable);
}
