// The network's input on a GPU: normalised images and labels of the step or evaluation that runs.
//
// There are two ways. Either the loader brings values, which travel to the GPU with every batch and are normalised
// there. Or the whole data set is in the GPU's memory, the loader brings the numbers of the samples, and the GPU
// gathers, crops, flips and normalises. Both give the same bits; the second moves 4 bytes a sample through the bus
// instead of all values, and saves the loader's processor time.
//
// One buffer of images serves every step: on the device's stream a step overwrites it after the step before has read
// it.
//
// Thread safety: one thread, the device's.
#ifndef STARRING_WORKER_STEP_CUDA_INPUT_H_
#define STARRING_WORKER_STEP_CUDA_INPUT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/model/network.h"
#include "worker/step/cuda_batch_slots.h"

namespace starring {

class CudaInput {
 public:
  struct Options {
    CudaDevice* device = nullptr;        // outlives the input
    const TrainAndTest* data = nullptr;  // likewise
    bool data_on_gpu = false;
    Element element = Element::kFloat32;               // of normalised images
    Loader::Augment augment = Loader::Augment::kNone;  // of training, as the loader's
    uint64_t seed = 0;                                 // likewise
    int64_t batch_max = 0;                             // of this rank in training
    int64_t evaluation_batch_max = 0;                  // of one evaluation
  };
  // Copies the data set, if it is to be on the GPU. ResourceExhausted with the number of bytes.
  static absl::StatusOr<std::unique_ptr<CudaInput>> Create(const Options& options);
  ~CudaInput();

  // Bytes of GPU memory that Create allocates for batches, and for the data set. options.device is not used.
  static int64_t BatchBytes(const Options& options);
  static int64_t DataBytes(const Options& options);

  // The format in which the loaders of training and evaluation must bring batches.
  Loader::Format format() const;

  // Copies the constants of the normalisation. To be called before the next two.
  absl::Status Begin(const Normalization& normalization);

  // Enqueues the work that makes the input of the batch in `slot`, or of an evaluation's batch. The next call
  // overwrites that input. Training reads the slot's memory and the bound step values when it runs, so it may be
  // captured.
  NetworkInput Training(const CudaBatchSlots::Slot& slot);
  NetworkInput Evaluation(const Batch& batch);

 private:
  struct Resident;  // a data set in GPU memory

  explicit CudaInput(const Options& options);
  absl::Status Allocate();
  absl::StatusOr<std::unique_ptr<Resident>> Upload(const Dataset& dataset);
  Elements Images() const { return {options_.element, images_->data()}; }
  NetworkInput Normalized(const void* targets, const void* values, int64_t batch);
  NetworkInput Gathered(const Resident& data, const uint32_t* samples, int64_t batch, Loader::Augment augment);

  const Options options_;
  CudaDevice& device_;
  const Dataset& shape_;                    // all images have the shape of this set's
  std::unique_ptr<Resident> train_, test_;  // both are set, or neither
  std::unique_ptr<DeviceBuffer> images_;    // normalised
  std::unique_ptr<DeviceBuffer> targets_;   // labels or targets; set if the data set is on the GPU
  // For an evaluation: its labels, targets or the numbers of its samples, and its values if the loader brings them.
  std::unique_ptr<DeviceBuffer> evaluation_head_, evaluation_values_;
  std::unique_ptr<DeviceBuffer> offset_, scale_;  // NormalizerConstants
};

}  // namespace starring

#endif  // STARRING_WORKER_STEP_CUDA_INPUT_H_
