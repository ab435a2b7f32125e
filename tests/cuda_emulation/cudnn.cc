// The part of cuDNN's backend that kernels/cuda uses, with convolutions of seven loops: NHWC, all tensors in memory
// float32 or all bfloat16, virtual ones float32, sums in double.
// It is as strict as the real one: attributes that are missing or of another type, descriptors that are not finalized,
// and pointers that are not aligned are refused. Every list of its heuristics begins with engines that must not be
// taken, and that compute wrong results.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gpu_libraries.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "tests/cuda_emulation/include/stored.h"

namespace starring::cudnn {

struct HandleOfCudnn {
  cudaStream_t stream = nullptr;
};

}  // namespace starring::cudnn

namespace starring {
namespace {

using cuda_emulation::Gpu;
using cuda_emulation::Stored;
using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::BehaviorNote;
using cudnn::DescriptorType;
using cudnn::NumericalNote;
using cudnn::Status;

struct Value {
  AttributeType type;
  int64_t count;
  std::vector<char> bytes;
};

struct Engine {
  int64_t number;
  std::vector<NumericalNote> notes;
  std::vector<BehaviorNote> behavior;
  int64_t workspace_bytes = 0;
  bool is_right = true;
  std::vector<std::pair<int, int64_t>> knobs = {};
};

struct TensorShape {
  int64_t id = 0, n = 0, c = 0, h = 0, w = 0;
  bool is_virtual = false, is_bfloat16 = false;
  int64_t elements() const { return n * c * h * w; }
  int64_t bytes() const { return elements() * (is_bfloat16 ? 2 : 4); }
};

// The content of an operation graph.
struct Convolution {
  DescriptorType kind = DescriptorType::kOperationConvolutionForward;
  TensorShape x, weight, y, bias, output;  // y: the convolution's own output; output: the graph's
  bool adds_bias = false, relu = false;
  std::array<int64_t, 2> stride = {}, padding = {};
};

struct Descriptor {
  DescriptorType type;
  bool is_finalized = false;
  std::map<Attribute, Value> values;
  std::optional<Convolution> graph;  // for a graph, and for descriptors that are made for one
  std::optional<Engine> engine;
  std::pair<int, int64_t> knob = {};
};

Descriptor* Of(cudnn::Descriptor descriptor) { return static_cast<Descriptor*>(descriptor); }

size_t SizeOf(AttributeType type) {
  switch (type) {
    case AttributeType::kBoolean:
      return sizeof(bool);
    case AttributeType::kInt64:
      return sizeof(int64_t);
    case AttributeType::kHandle:
    case AttributeType::kVoidPointer:
    case AttributeType::kDescriptor:
      return sizeof(void*);
    default:
      return sizeof(int);  // enumerations and floats
  }
}

// The attribute's `count` elements of `type`; null unless exactly that was set.
template <typename T>
const T* Find(const Descriptor& d, Attribute attribute, AttributeType type, int64_t count) {
  const auto found = d.values.find(attribute);
  if (found == d.values.end() || found->second.type != type || found->second.count != count) return nullptr;
  return reinterpret_cast<const T*>(found->second.bytes.data());
}
template <typename T>
bool Has(const Descriptor& d, Attribute attribute, AttributeType type, const std::vector<T>& expected) {
  const T* const values = Find<T>(d, attribute, type, std::ssize(expected));
  return values != nullptr && std::equal(expected.begin(), expected.end(), values);
}
const Descriptor* Child(const Descriptor& d, Attribute attribute, DescriptorType type) {
  auto* const* const child = Find<Descriptor*>(d, attribute, AttributeType::kDescriptor, 1);
  return child != nullptr && (*child)->type == type && (*child)->is_finalized ? *child : nullptr;
}

// Null unless it is NHWC in memory.
std::optional<TensorShape> ReadTensor(const Descriptor* d) {
  if (d == nullptr) return std::nullopt;
  // 9: CUDNN_DATA_BFLOAT16.
  const bool is_bfloat16 = Has<int>(*d, Attribute::kTensorDataType, AttributeType::kDataType, {9});
  if (!is_bfloat16 && !Has<int>(*d, Attribute::kTensorDataType, AttributeType::kDataType, {0})) return std::nullopt;
  if (!Has<int64_t>(*d, Attribute::kTensorByteAlignment, AttributeType::kInt64, {16})) return std::nullopt;
  const auto* const size = Find<int64_t>(*d, Attribute::kTensorDimensions, AttributeType::kInt64, 4);
  const auto* const id = Find<int64_t>(*d, Attribute::kTensorUniqueId, AttributeType::kInt64, 1);
  if (size == nullptr || id == nullptr) return std::nullopt;
  const TensorShape t = {
      .id = *id,
      .n = size[0],
      .c = size[1],
      .h = size[2],
      .w = size[3],
      .is_virtual = Find<bool>(*d, Attribute::kTensorIsVirtual, AttributeType::kBoolean, 1) != nullptr,
      .is_bfloat16 = is_bfloat16};
  if (t.is_virtual && is_bfloat16) return std::nullopt;  // no product of ours rounds between fused operations
  const std::vector<int64_t> strides = {t.h * t.w * t.c, 1, t.w * t.c, t.c};
  if (!Has(*d, Attribute::kTensorStrides, AttributeType::kInt64, strides)) return std::nullopt;
  return t;
}

Attribute Part(Attribute alpha, cudnn::ConvolutionPart part) {
  return static_cast<Attribute>(static_cast<int>(alpha) + static_cast<int>(part));
}

bool ReadConvolution(const Descriptor& operation, Convolution* c) {
  using P = cudnn::ConvolutionPart;
  c->kind = operation.type;
  const Attribute alpha = operation.type == DescriptorType::kOperationConvolutionForward ? Attribute::kForwardAlpha
                          : operation.type == DescriptorType::kOperationConvolutionBackwardData
                              ? Attribute::kBackwardDataAlpha
                              : Attribute::kBackwardFilterAlpha;
  const Descriptor* const shape = Child(operation, Part(alpha, P::kDescriptor), DescriptorType::kConvolution);
  const auto tensor = [&](P part) { return ReadTensor(Child(operation, Part(alpha, part), DescriptorType::kTensor)); };
  const auto x = tensor(P::kX), weight = tensor(P::kWeight), y = tensor(P::kY);
  if (shape == nullptr || !x.has_value() || !weight.has_value() || !y.has_value()) return false;
  // Alpha 1 and beta 0; compute type float (0); mode cross-correlation (1); two dimensions without dilation.
  if (!Has<float>(operation, alpha, AttributeType::kFloat, {1}) ||
      !Has<float>(operation, Part(alpha, P::kBeta), AttributeType::kFloat, {0}) ||
      !Has<int>(*shape, Attribute::kConvolutionComputeType, AttributeType::kDataType, {0}) ||
      !Has<int>(*shape, Attribute::kConvolutionMode, AttributeType::kConvolutionMode, {1}) ||
      !Has<int64_t>(*shape, Attribute::kConvolutionSpatialDimensions, AttributeType::kInt64, {2}) ||
      !Has<int64_t>(*shape, Attribute::kConvolutionDilations, AttributeType::kInt64, {1, 1})) {
    return false;
  }
  const auto* const stride = Find<int64_t>(*shape, Attribute::kConvolutionFilterStrides, AttributeType::kInt64, 2);
  const auto* const before = Find<int64_t>(*shape, Attribute::kConvolutionPrePaddings, AttributeType::kInt64, 2);
  const auto* const after = Find<int64_t>(*shape, Attribute::kConvolutionPostPaddings, AttributeType::kInt64, 2);
  if (stride == nullptr || before == nullptr || after == nullptr || !std::equal(before, before + 2, after))
    return false;
  c->x = *x;
  c->weight = *weight;
  c->y = c->output = *y;
  c->stride = {stride[0], stride[1]};
  c->padding = {before[0], before[1]};
  return x->n == y->n && weight->n == y->c && weight->c == x->c &&
         y->h == (x->h + 2 * before[0] - weight->h) / stride[0] + 1 &&
         y->w == (x->w + 2 * before[1] - weight->w) / stride[1] + 1;
}

// y = x + bias or y = relu(x), where x is the virtual output so far.
bool ReadPointwise(const Descriptor& operation, Convolution* c) {
  const Descriptor* const function = Child(operation, Attribute::kPointwiseDescriptor, DescriptorType::kPointwise);
  const auto x = ReadTensor(Child(operation, Attribute::kPointwiseX, DescriptorType::kTensor));
  const auto y = ReadTensor(Child(operation, Attribute::kPointwiseY, DescriptorType::kTensor));
  if (function == nullptr || !x.has_value() || !y.has_value()) return false;
  if (c->kind != DescriptorType::kOperationConvolutionForward || x->id != c->output.id || !x->is_virtual) return false;
  if (y->n != x->n || y->c != x->c || y->h != x->h || y->w != x->w) return false;
  if (!Has<int>(*function, Attribute::kPointwiseMathPrecision, AttributeType::kDataType, {0})) return false;
  c->output = *y;
  // 100: CUDNN_POINTWISE_RELU_FWD. 0, below: CUDNN_POINTWISE_ADD.
  if (Has<int>(*function, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, {100})) {
    return std::exchange(c->relu, true) == false;
  }
  const auto bias = ReadTensor(Child(operation, Attribute::kPointwiseB, DescriptorType::kTensor));
  if (!bias.has_value() || bias->n * bias->h * bias->w != 1 || bias->c != y->c || c->relu) return false;
  c->bias = *bias;
  return Has<int>(*function, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, {0}) &&
         std::exchange(c->adds_bias, true) == false;
}

Status FinalizeGraph(Descriptor* d) {
  if (Find<void*>(*d, Attribute::kOperationGraphHandle, AttributeType::kHandle, 1) == nullptr) {
    return Status::kBadParameter;
  }
  const auto found = d->values.find(Attribute::kOperationGraphOperations);
  if (found == d->values.end() || found->second.type != AttributeType::kDescriptor) return Status::kBadParameter;
  auto* const* const operations = reinterpret_cast<Descriptor* const*>(found->second.bytes.data());
  Convolution c;
  for (int64_t i = 0; i < found->second.count; ++i) {
    if (!operations[i]->is_finalized) return Status::kNotFinalized;
    const bool pointwise = operations[i]->type == DescriptorType::kOperationPointwise;
    if (pointwise != (i > 0)) return Status::kNotSupported;
    if (pointwise ? !ReadPointwise(*operations[i], &c) : !ReadConvolution(*operations[i], &c)) {
      return Status::kBadParameter;
    }
  }
  if (c.output.is_virtual || c.x.is_virtual || c.weight.is_virtual) return Status::kBadParameter;
  if (c.output.id != c.y.id && !c.y.is_virtual) return Status::kBadParameter;
  // As cuDNN 9.19: no engine writes another type than it reads, and a bias has that type too.
  const bool is_bfloat16 = c.x.is_bfloat16;
  if (c.weight.is_bfloat16 != is_bfloat16 || c.output.is_bfloat16 != is_bfloat16 ||
      (c.adds_bias && c.bias.is_bfloat16 != is_bfloat16)) {
    return Status::kNotSupported;
  }
  d->graph = c;
  return Status::kSuccess;
}

// The first ones must not be taken, because of their notes, of how they are made, or of their workspace.
std::vector<Engine> EnginesFor(const Convolution& c) {
  const int64_t too_large = int64_t{1} << 40;
  std::vector<Engine> engines = {
      {.number = 90, .notes = {NumericalNote::kNondeterministic}, .behavior = {}, .is_right = false},
      {.number = 91,
       .notes = {NumericalNote::kTensorCore, NumericalNote::kDownConvertInputs},
       .behavior = {},
       .is_right = false},
      {.number = 92, .notes = {NumericalNote::kWinograd}, .behavior = {}, .is_right = false},
      {.number = 93, .notes = {static_cast<NumericalNote>(77)}, .behavior = {}, .is_right = false},
      {.number = 94, .notes = {}, .behavior = {BehaviorNote::kRuntimeCompilation}, .is_right = false},
      {.number = 95, .notes = {}, .behavior = {}, .workspace_bytes = too_large, .is_right = false},
      {.number = 96, .notes = {}, .behavior = {}, .workspace_bytes = -1, .is_right = false}};  // no plan
  if (!Gpu().cudnn_fuses && c.output.id != c.y.id) return engines;
  if (c.x.c == Gpu().cudnn_channels_refused) return engines;
  const int64_t first = Gpu().cudnn_first_engine;
  engines.push_back({.number = first + 40, .notes = {NumericalNote::kTensorCore}, .behavior = {}, .knobs = {{2, 5}}});
  engines.push_back({.number = first,
                     .notes = {},
                     .behavior = {},
                     .workspace_bytes = 64 + 4 * c.y.c,
                     .knobs = {{18, c.y.h % 2}, {2, 4}}});
  engines.push_back({.number = 0, .notes = {NumericalNote::kStrictNanPropagation}, .behavior = {}, .is_right = false});
  return engines;
}

Status FinalizeHeuristics(Descriptor* d) {
  const Descriptor* const graph =
      Child(*d, Attribute::kEngineHeuristicsOperationGraph, DescriptorType::kOperationGraph);
  const int* const mode = Find<int>(*d, Attribute::kEngineHeuristicsMode, AttributeType::kHeuristicsMode, 1);
  if (graph == nullptr || mode == nullptr || *mode < 0 || *mode > 3) return Status::kBadParameter;
  d->graph = graph->graph;
  return Status::kSuccess;
}

Status FinalizePlan(Descriptor* d) {
  const Descriptor* const configuration =
      Child(*d, Attribute::kExecutionPlanEngineConfig, DescriptorType::kEngineConfig);
  if (configuration == nullptr ||
      Find<void*>(*d, Attribute::kExecutionPlanHandle, AttributeType::kHandle, 1) == nullptr) {
    return Status::kBadParameter;
  }
  if (configuration->engine->workspace_bytes < 0) return Status::kNotSupported;
  d->engine = configuration->engine;
  d->graph = configuration->graph;
  return Status::kSuccess;
}

Status FinalizePack(const Descriptor& d) {
  const auto ids = d.values.find(Attribute::kVariantPackUniqueIds);
  if (ids == d.values.end() || ids->second.type != AttributeType::kInt64) return Status::kBadParameter;
  auto* const* const pointers =
      Find<void*>(d, Attribute::kVariantPackDataPointers, AttributeType::kVoidPointer, ids->second.count);
  if (pointers == nullptr ||
      Find<void*>(d, Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, 1) == nullptr)
    return Status::kBadParameter;
  const bool aligned = std::all_of(pointers, pointers + ids->second.count, [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
  return aligned ? Status::kSuccess : Status::kBadParameter;
}

// One execution.
struct Work {
  Convolution c;
  Engine engine;
  void* x_memory = nullptr;
  void* weight_memory = nullptr;
  void* output_memory = nullptr;
  const void* bias_memory = nullptr;
  char* workspace = nullptr;

  bool IsForward() const { return c.kind == DescriptorType::kOperationConvolutionForward; }
  bool IsData() const { return c.kind == DescriptorType::kOperationConvolutionBackwardData; }
  int64_t WrittenBytes() const { return (IsForward() ? c.output : IsData() ? c.x : c.weight).bytes(); }
  int64_t ReadBytes() const {
    return c.x.bytes() + c.weight.bytes() + c.output.bytes() + (c.adds_bias ? c.bias.bytes() : 0) - WrittenBytes();
  }

  // Visits every pair of a place of y and a place of x that the kernel joins.
  template <typename Visit>
  void ForPairs(const Visit& visit) const {
    for (int64_t n = 0; n < c.y.n; ++n)
      for (int64_t oh = 0; oh < c.y.h; ++oh)
        for (int64_t ow = 0; ow < c.y.w; ++ow)
          for (int64_t r = 0; r < c.weight.h; ++r)
            for (int64_t s = 0; s < c.weight.w; ++s) {
              const int64_t h = oh * c.stride[0] + r - c.padding[0], w = ow * c.stride[1] + s - c.padding[1];
              if (h < 0 || h >= c.x.h || w < 0 || w >= c.x.w) continue;
              visit(((n * c.y.h + oh) * c.y.w + ow) * c.y.c, ((n * c.x.h + h) * c.x.w + w) * c.x.c,
                    (r * c.weight.w + s) * c.x.c);
            }
  }

  void Run() const {
    // Writes all of the workspace, so that AddressSanitizer sees one that is too short.
    std::fill_n(workspace, engine.workspace_bytes, static_cast<char>(0xff));
    const int64_t filter = c.weight.h * c.weight.w * c.x.c;
    const int64_t outputs = c.y.n * c.y.h * c.y.w * c.y.c, inputs = c.x.n * c.x.h * c.x.w * c.x.c;
    const bool forward = IsForward(), data = IsData();
    const Stored x_stored(x_memory, c.x.elements(), c.x.is_bfloat16);
    const Stored weight_stored(weight_memory, c.weight.elements(), c.x.is_bfloat16);
    const Stored output_stored(output_memory, c.output.elements(), c.x.is_bfloat16);
    const Stored bias(bias_memory, c.adds_bias ? c.bias.elements() : 0, c.x.is_bfloat16);
    const float* const x = x_stored.floats();
    const float* const weight = weight_stored.floats();
    const float* const output = output_stored.floats();
    std::vector<double> sums(static_cast<size_t>(forward ? outputs : data ? inputs : c.y.c * filter));
    ForPairs([&](int64_t to, int64_t from, int64_t place) {
      for (int64_t k = 0; k < c.y.c; ++k) {
        for (int64_t i = 0; i < c.x.c; ++i) {
          const int64_t at = k * filter + place + i;
          if (forward)
            sums[static_cast<size_t>(to + k)] += double{x[from + i]} * weight[at];
          else if (data)
            sums[static_cast<size_t>(from + i)] += double{output[to + k]} * weight[at];
          else
            sums[static_cast<size_t>(at)] += double{output[to + k]} * x[from + i];
        }
      }
    });
    void* const result = forward ? output_memory : data ? x_memory : weight_memory;
    for (size_t i = 0; i < sums.size(); ++i) {
      double value = sums[i] + (engine.is_right ? 0 : 1);
      if (c.adds_bias) value += bias.floats()[static_cast<int64_t>(i) % c.y.c];
      if (c.relu && value < 0) value = 0;
      x_stored.Write(result, static_cast<int64_t>(i), static_cast<float>(value));
    }
  }
};

size_t GetVersion() { return static_cast<size_t>(Gpu().cudnn_version); }

const char* GetErrorString(Status status) {
  switch (status) {
    case Status::kBadParameter:
      return "CUDNN_STATUS_BAD_PARAM";
    case Status::kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case Status::kNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    default:
      return "another status";
  }
}

void GetLastErrorString(char* message, size_t size_max) { std::strncpy(message, "emulated", size_max); }

Status Create(cudnn::Handle* handle) {
  if (!Gpu().cudnn_starts) return Status::kNotInitialized;
  *handle = new cudnn::HandleOfCudnn;
  return Status::kSuccess;
}
Status Destroy(cudnn::Handle handle) {
  delete handle;
  return Status::kSuccess;
}
Status SetStream(cudnn::Handle handle, cudaStream_t stream) {
  handle->stream = stream;
  return Status::kSuccess;
}

Status CreateDescriptor(DescriptorType type, cudnn::Descriptor* descriptor) {
  *descriptor = new Descriptor{.type = type};
  return Status::kSuccess;
}
Status DestroyDescriptor(cudnn::Descriptor descriptor) {
  delete Of(descriptor);
  return Status::kSuccess;
}

Status SetAttribute(cudnn::Descriptor descriptor, Attribute attribute, AttributeType type, int64_t count,
                    const void* elements) {
  Descriptor& d = *Of(descriptor);
  if (d.is_finalized || count < 1) return Status::kBadParameter;
  const auto* const bytes = static_cast<const char*>(elements);
  d.values[attribute] = {type, count, {bytes, bytes + static_cast<size_t>(count) * SizeOf(type)}};
  return Status::kSuccess;
}

Status Finalize(cudnn::Descriptor descriptor) {
  Descriptor& d = *Of(descriptor);
  Status status = Status::kSuccess;
  switch (d.type) {
    case DescriptorType::kTensor:
      status = ReadTensor(&d).has_value() ? Status::kSuccess : Status::kBadParameter;
      break;
    case DescriptorType::kOperationGraph:
      status = FinalizeGraph(&d);
      break;
    case DescriptorType::kEngineHeuristics:
      status = FinalizeHeuristics(&d);
      break;
    case DescriptorType::kExecutionPlan:
      status = FinalizePlan(&d);
      break;
    case DescriptorType::kVariantPack:
      status = FinalizePack(d);
      break;
    default:  // read with the graph
      break;
  }
  d.is_finalized = status == Status::kSuccess;
  return status;
}

template <typename T>
Status Give(const std::vector<T>& values, int64_t count_max, int64_t* count, void* elements) {
  *count = std::min(count_max, static_cast<int64_t>(values.size()));
  std::copy_n(values.begin(), *count, static_cast<T*>(elements));
  return Status::kSuccess;
}

// `fill(descriptor, i)` for each of them.
template <typename Fill>
Status GiveDescriptors(int64_t have, int64_t count_max, int64_t* count, void* elements, const Fill& fill) {
  *count = std::min(count_max, have);
  for (int64_t i = 0; i < *count; ++i) {
    Descriptor* const to = static_cast<Descriptor**>(elements)[i];
    if (to->is_finalized) return Status::kBadParameter;
    fill(to, static_cast<size_t>(i));
    to->is_finalized = true;
  }
  return Status::kSuccess;
}

Status GetAttribute(cudnn::Descriptor descriptor, Attribute attribute, AttributeType type, int64_t count_max,
                    int64_t* count, void* elements) {
  const Descriptor& d = *Of(descriptor);
  if (attribute == Attribute::kKnobChoiceType && type == AttributeType::kKnobType) {
    return Give<int>({d.knob.first}, count_max, count, elements);
  }
  if (attribute == Attribute::kKnobChoiceValue && type == AttributeType::kInt64) {
    return Give<int64_t>({d.knob.second}, count_max, count, elements);
  }
  if (!d.is_finalized) return Status::kNotFinalized;
  if (attribute == Attribute::kEngineHeuristicsResults && type == AttributeType::kDescriptor) {
    const std::vector<Engine> engines = EnginesFor(*d.graph);
    return GiveDescriptors(std::ssize(engines), count_max, count, elements, [&](Descriptor* to, size_t i) {
      to->engine = engines[i];
      to->graph = d.graph;
    });
  }
  if (!d.engine.has_value()) return Status::kBadParameter;
  switch (attribute) {
    case Attribute::kEngineConfigEngine:
      return GiveDescriptors(1, count_max, count, elements, [&](Descriptor* to, size_t) { to->engine = d.engine; });
    case Attribute::kEngineConfigKnobChoices:
      return GiveDescriptors(std::ssize(d.engine->knobs), count_max, count, elements,
                             [&](Descriptor* to, size_t i) { to->knob = d.engine->knobs[i]; });
    case Attribute::kEngineGlobalIndex:
      return Give<int64_t>({d.engine->number}, count_max, count, elements);
    case Attribute::kEngineNumericalNote:
      return Give(d.engine->notes, count_max, count, elements);
    case Attribute::kEngineBehaviorNote:
      return Give(d.engine->behavior, count_max, count, elements);
    case Attribute::kExecutionPlanWorkspaceSize:
      return Give<int64_t>({d.engine->workspace_bytes}, count_max, count, elements);
    default:
      return Status::kBadParameter;
  }
}

Status Execute(cudnn::Handle handle, cudnn::Descriptor plan, cudnn::Descriptor variant_pack) {
  const Descriptor& p = *Of(plan);
  const Descriptor& pack = *Of(variant_pack);
  if (p.type != DescriptorType::kExecutionPlan || !p.is_finalized || !pack.is_finalized || handle->stream == nullptr) {
    return Status::kBadParameter;
  }
  const Value& ids = pack.values.at(Attribute::kVariantPackUniqueIds);
  auto* const* const data =
      reinterpret_cast<void* const*>(pack.values.at(Attribute::kVariantPackDataPointers).bytes.data());
  std::map<int64_t, void*> pointers;
  for (int64_t i = 0; i < ids.count; ++i) {
    pointers[reinterpret_cast<const int64_t*>(ids.bytes.data())[i]] = data[i];
  }
  const Work work = {.c = *p.graph,
                     .engine = *p.engine,
                     .x_memory = pointers[p.graph->x.id],
                     .weight_memory = pointers[p.graph->weight.id],
                     .output_memory = pointers[p.graph->output.id],
                     .bias_memory = p.graph->adds_bias ? pointers[p.graph->bias.id] : nullptr,
                     .workspace = *Find<char*>(pack, Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, 1)};
  const bool has_workspace = work.workspace != nullptr || work.engine.workspace_bytes == 0;
  if (work.x_memory == nullptr || work.weight_memory == nullptr || work.output_memory == nullptr || !has_workspace ||
      (work.c.adds_bias && work.bias_memory == nullptr)) {
    return Status::kBadParameter;
  }
  cuda_emulation::Enqueue(handle->stream, [work] {
    if (!Gpu().counts_bytes) return work.Run();
    cuda_emulation::AddTraffic(work.ReadBytes(), work.WrittenBytes());
  });
  return Status::kSuccess;
}

}  // namespace

absl::StatusOr<CudnnLibrary> CudnnLibrary::Load(const std::vector<std::string>&) {
  if (Gpu().cudnn_version == 0) {
    return absl::UnavailableError("cuDNN 9 cannot be loaded: the emulated machine has none: install it");
  }
  return CudnnLibrary{.get_version = GetVersion,
                      .get_error_string = GetErrorString,
                      .get_last_error_string = GetLastErrorString,
                      .create = Create,
                      .destroy = Destroy,
                      .set_stream = SetStream,
                      .create_descriptor = CreateDescriptor,
                      .destroy_descriptor = DestroyDescriptor,
                      .finalize = Finalize,
                      .set_attribute = SetAttribute,
                      .get_attribute = GetAttribute,
                      .execute = Execute};
}

}  // namespace starring
