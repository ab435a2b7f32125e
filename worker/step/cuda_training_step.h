// The step on a GPU.
//
// Words. A *segment* is a part of a step that is launched as one graph. Forward is cut before each layer that reads a
// bucket which no layer before it reads; the last segment also has the loss, backward and, with one worker, the
// optimizer. lenet5 has one bucket and so one segment: one launch a step. For slots see cuda_batch_slots.h, for buckets
// cuda_bucket_transfers.h: a table in each says which work must follow which, and by which event or wait it does.
//
//   stream      | this step's segments, each after the buckets that it reads        done
//   downloads   |        a bucket's gradients, when backward has written them -> an event
//   uploads     | parameters of a bucket, when the exchange has brought them
//   feed        |                              the next batch
//   this thread | Await, launch, ..., launch, feed, (event b, check, Submit b) ...
//
// Where the exchange is in the order of the stream (stream_exchange.h), the GPU waits for other ranks itself. Then a
// step has one segment, and steps are launched ahead as with one worker.
//
// With several workers the exchange sees pinned host copies of gradients and parameters, or the GPU's memory itself if
// a CUDA-aware MPI moves it. With one worker neither leaves the GPU before an epoch ends, and the GPU looks for NaN and
// infinities. Then step t is launched while steps t - 3 to t - 1 are still running or queued on the GPU, and its loss
// and its NaNs are known three steps later. The reason: a thread that slept until a step ended wakes up 20 to 60 us
// after it, and must copy a batch and launch a graph before the GPU has work again. With one step queued that shows in
// steps of 100 us; with three it does not.
//
// With several workers each segment begins and ends with a stamp of the GPU's clock (gpu_stamps.h): the gaps between
// them are the exposed exchange.
//
// An event that is recorded in a graph is recorded by every launch of that graph (CUDA's cudaGraphAddEventRecordNode:
// "Each launch of the graph will record event"). So waiting for the event after a launch waits for that launch.
//
// The first step of a batch size runs without a graph: it creates the operations, and CUDA loads their kernels, which
// is not allowed in a capture. Then the first step on each slot is captured, and all later steps are only launched. A
// graph keeps the network's operations alive from which it was captured.
#ifndef STARRING_WORKER_STEP_CUDA_TRAINING_STEP_H_
#define STARRING_WORKER_STEP_CUDA_TRAINING_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/step/training_step.h"

namespace starring {

enum class CudaGraphs { kCaptured, kNone };  // kNone: the same work, launched call by call

struct CudaTrainingStepOptions {
  CudaDevice* device = nullptr;  // the network's; outlives the step
  // Set if the job has one worker, and does not clip: then the step applies this optimizer on the GPU, and the exchange
  // gets no bucket.
  std::optional<OptimizerConfig> optimizer;
  CudaGraphs graphs = CudaGraphs::kCaptured;
  // As CudaInput's.
  const TrainAndTest* data = nullptr;
  bool data_on_gpu = false;
  Element element = Element::kFloat32;  // of images: NetworkOptions::element
  Loader::Augment augment = Loader::Augment::kNone;
  uint64_t seed = 0;
  int64_t batch_max = 0;             // of this rank in training
  int64_t evaluation_batch_max = 0;  // of one Evaluate
  int batch_slots = 4;               // see cuda_batch_slots.h; with a StreamExchange its kSlots
};

// The bytes that a step allocates on the GPU: for parameters and gradients, for batches, and for the data set.
int64_t CudaParametersBytes(int64_t element_count);
int64_t CudaBatchesBytes(const CudaTrainingStepOptions& options);
int64_t CudaDataBytes(const CudaTrainingStepOptions& options);

// ResourceExhausted with the number of bytes. The step ends before the exchange, the network and the device do.
absl::StatusOr<std::unique_ptr<TrainingStep>> CreateCudaTrainingStep(const TrainingStepParts& parts,
                                                                     const CudaTrainingStepOptions& options);

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CUDA_TRAINING_STEP_H_
