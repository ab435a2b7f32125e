// A device of plain loops, for tests of code that uses devices. Sums are in double precision. Its operations do to
// their caller everything that the contracts of kernels/device.h allow: scratch is overwritten, and fresh memory is
// full of NaN. (The contract says zeros, but code that relies on them in an arena that is used twice is wrong.)
#ifndef STARRING_TESTS_WORKER_MODEL_REFERENCE_DEVICE_H_
#define STARRING_TESTS_WORKER_MODEL_REFERENCE_DEVICE_H_

#include <memory>

#include "kernels/device.h"

namespace starring {

class ReferenceDevice : public Device {
 public:
  std::string name() const override { return "reference"; }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) override;
  absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec& spec) override;
  absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec& spec) override;
  absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec& spec) override;

  void Relu(ConstElements x, Elements y, int64_t count) override;
  void ReluBackward(ConstElements y, ConstElements dy, Elements dx, int64_t count) override;
  void Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) override;
  void AddReluBackward(ConstElements y, ConstElements a, ConstElements b, Elements dx, int64_t count) override;
  void Cast(const float* from, Elements to, int64_t count) override;

  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override;
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  int operations_created() const { return operations_created_; }

 private:
  int operations_created_ = 0;
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_MODEL_REFERENCE_DEVICE_H_
