// A device whose operations do nothing, for counting what the network itself allocates and calls.
#ifndef STARRING_TESTS_WORKER_MODEL_IDLE_DEVICE_H_
#define STARRING_TESTS_WORKER_MODEL_IDLE_DEVICE_H_

#include <memory>

#include "tests/worker/model/reference_device.h"

namespace starring {

// Memory and copies work as on the reference device.
class IdleDevice : public ReferenceDevice {
 public:
  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec&) override {
    return std::make_unique<IdleOperation>();
  }
  absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec&) override {
    return std::make_unique<IdleBatchNorm>();
  }
  absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec&) override {
    return std::make_unique<IdleDropout>();
  }
  absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec&) override { return std::make_unique<IdleLoss>(); }

 private:
  class IdleOperation : public FloatOperation {
    void Forward(const float*, const float*, const float*, float*) override {}
    void Backward(const float*, const float*, const float*, float*, float*, float*, float*) override {}
  };
  class IdleBatchNorm : public FloatBatchNorm {
    void Forward(const float*, const float*, const float*, float*, float*, float*) override {}
    void Infer(const float*, const float*, const float*, const float*, const float*, float*) override {}
    void Backward(const float*, const float*, const float*, float*, float*, float*, float*) override {}
  };
  class IdleDropout : public FloatDropout {
    void Forward(const float*, int64_t, int64_t, float*) override {}
    void Backward(const float*, float*) override {}
  };
  class IdleLoss : public Loss {
    void Run(const float*, LossTargets, float, float*) override {}
    LossResult Result() override { return {}; }
  };
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_MODEL_IDLE_DEVICE_H_
