#include "kernels/cpu/cpu_device.h"

#include <gnu/libc-version.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "dnnl.hpp"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/granted_threads.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

// Device memory is the host's here: a copy is a memcpy, and a call has done its work when it returns.
class CpuBuffer : public DeviceBuffer {
 public:
  explicit CpuBuffer(AlignedMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  int64_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  AlignedMemory memory_;
};

absl::Status CheckElement(Element element) {
  if (element == Element::kFloat32) return absl::OkStatus();
  return absl::InvalidArgumentError("the CPU stores activations in float32: bfloat16 needs a GPU");
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) {
    context_.threads = options.threads;
    context_.instruction_set = options.instruction_set;
  }

  std::string name() const override {
    const std::string threads = absl::StrCat(context_.threads, context_.threads == 1 ? " thread" : " threads");
    if (!uses_onednn_) return absl::StrCat("cpu (", threads, ")");
    const dnnl_version_t* version = dnnl_version();
    return absl::StrCat("cpu (oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ", threads, ")");
  }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) override {
    if (size_bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat("a buffer of ", size_bytes, " bytes: must be at least 0"));
    }
    // The memory is zeroed, as Device::Allocate promises.
    AlignedMemory memory(size_bytes);
    if (memory.data() == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", size_bytes, " bytes"));
    }
    return std::make_unique<CpuBuffer>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) override {
    // The factories rely on this check. oneDNN would refuse a wrong shape too, but without its numbers.
    RETURN_IF_ERROR(CheckShape(spec));
    RETURN_IF_ERROR(std::visit([](const auto& s) { return CheckElement(s.element); }, spec));
    return std::visit([this](const auto& s) { return Create(s); }, spec);
  }
  absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec& spec) override {
    RETURN_IF_ERROR(CheckElement(spec.element));
    return CreateCpuBatchNorm(&context_, spec);
  }
  absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec& spec) override {
    RETURN_IF_ERROR(CheckElement(spec.element));
    return CreateCpuDropout(&context_, spec);
  }
  absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec& spec) override {
    RETURN_IF_ERROR(CheckShape(spec));
    return spec.kind == LossKind::kSoftmax ? CreateCpuSoftmaxCrossEntropy(&context_, spec)
                                           : CreateCpuValueLoss(&context_, spec);
  }

  void Relu(ConstElements x, Elements y, int64_t count) override {
    starring::Relu(context_, x.floats(), y.floats(), count);
  }
  void ReluBackward(ConstElements y, ConstElements dy, Elements dx, int64_t count) override {
    starring::ReluBackward(context_, y.floats(), dy.floats(), dx.floats(), count);
  }
  void Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) override {
    starring::Add(context_, a.floats(), b.floats(), activation, y.floats(), count);
  }
  void AddReluBackward(ConstElements y, ConstElements a, ConstElements b, Elements dx, int64_t count) override {
    starring::AddReluBackward(context_, y.floats(), a.floats(), b.floats(), dx.floats(), count);
  }
  void Cast(const float*, Elements, int64_t) override { CHECK(false) << "this device has float32 elements alone"; }

  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    // An empty span may have a null pointer, which memcpy does not allow even for 0 bytes.
    if (size_bytes > 0) std::memcpy(device, host, static_cast<size_t>(size_bytes));
  }
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(host, device, static_cast<size_t>(size_bytes));
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const Conv2dSpec& spec) {
    if (TiledConv2dPays(spec, context_.instruction_set)) return CreateTiledConv2d(&context_, spec);
    uses_onednn_ = true;
    return CreateOnednnConv2d(&context_, spec);
  }
  template <typename Spec>
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const Spec& spec) {
    return CreateCpuOperation(&context_, spec);
  }

  CpuContext context_;
  bool uses_onednn_ = false;  // a run record names oneDNN only if an operation runs on it
};

constexpr const char* kNames[kInstructionSetCount] = {"baseline", "avx2", "avx512"};

// libm chooses its own instructions by the processor, whatever --isa says: without FMA the last bit of one logarithm in
// 35,000 is another (glibc 2.36). Softmax takes exponentials of numbers up to 0, and logarithms of sums of theirs.
// Takes some milliseconds.
std::string LibmBits() {
  uint64_t bits = 14695981039346656037u;  // FNV-1a
  for (int i = 0; i < 300'000; ++i) {
    const float power = std::exp(-5e-5f * static_cast<float>(i));
    const double logarithm = std::log(1.0 + 1.7 * power);
    for (const uint64_t one : {std::bit_cast<uint64_t>(double{power}), std::bit_cast<uint64_t>(logarithm)}) {
      bits = (bits ^ one) * 1099511628211u;
    }
  }
  return absl::StrCat(absl::Hex(bits));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  CHECK_GE(options.threads, 1);
  CHECK_LE(options.instruction_set, BestInstructionSet());
  RETURN_IF_ERROR(GrantThreads(options.threads));
  // oneDNN reports by exceptions, and none of them may leave this target. Here it is the context's engine and stream
  // that may throw.
  try {
    return std::make_unique<CpuDevice>(options);
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN has no CPU engine here: ", error.what()));
  }
}

std::vector<std::pair<std::string, std::string>> CpuArithmetic(InstructionSet instruction_set) {
  const dnnl_version_t* const onednn = dnnl_version();
  // oneDNN's numbers of its instruction sets: 0x1 is SSE4.1, 0x7 AVX2, 0x27 AVX-512.
  return {{"arithmetic.instruction_set", kNames[static_cast<int>(instruction_set)]},
          {"arithmetic.onednn", absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch)},
          {"arithmetic.onednn_isa", absl::StrCat("0x", absl::Hex(static_cast<unsigned>(dnnl_get_effective_cpu_isa())))},
          {"arithmetic.libc", gnu_get_libc_version()},
          {"arithmetic.libm", LibmBits()}};
}

absl::Status LimitOnednn(InstructionSet instruction_set) {
  if (instruction_set > BestInstructionSet()) {
    return absl::InvalidArgumentError(absl::StrCat("this machine has ", kNames[static_cast<int>(BestInstructionSet())],
                                                   " at most, not ", kNames[static_cast<int>(instruction_set)]));
  }
  // oneDNN has no lower limit than SSE4.1. Our baseline runs no primitive of oneDNN (TiledConv2dPays), so that does not
  // matter for bits.
  constexpr dnnl_cpu_isa_t kLimits[kInstructionSetCount] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2,
                                                            dnnl_cpu_isa_avx512_core};
  // Fails if oneDNN has been used already, or was built without this choice.
  if (dnnl_set_max_cpu_isa(kLimits[static_cast<int>(instruction_set)]) != dnnl_success) {
    return absl::FailedPreconditionError("oneDNN's instruction set cannot be limited any more");
  }
  return absl::OkStatus();
}

}  // namespace starring
