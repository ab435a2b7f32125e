#include "kernels/cuda/cudnn_product.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DescriptorType;
using cudnn::NumericalNote;

// The alignment of every pointer.
constexpr int64_t kAlignmentBytes = 16;
// cuDNN 9.19 has fewer of each. A note that was cut off would not be checked.
constexpr int64_t kNotesMax = 32, kKnobsMax = 64;
// The configurations that are read from one list of the heuristics, which begins with the best.
constexpr int64_t kConfigurationsMax = 64;

// Identifies the graph's tensors. kConvolved and kBiased are virtual: they exist between two operations only.
enum TensorId : int64_t { kX = 1, kWeight, kY, kBias, kConvolved, kBiased };

// Whether an engine with this note rounds no more than `math` allows. A note that is not listed here refuses the
// engine, so that a newer cuDNN cannot bring in engines with properties that this build has not heard of.
bool MayRound(NumericalNote note, CudaMath math) {
  // Tensor cores take float32 factors in tf32. Strict propagation of NaN is what we want, and rounds nothing.
  if (note == NumericalNote::kTensorCore) return math != CudaMath::kFp32;
  return note == NumericalNote::kStrictNanPropagation;
}

DescriptorType OperationOf(ConvolutionProduct product) {
  switch (product) {
    case ConvolutionProduct::kInputGradient:
      return DescriptorType::kOperationConvolutionBackwardData;
    case ConvolutionProduct::kWeightGradient:
      return DescriptorType::kOperationConvolutionBackwardFilter;
    case ConvolutionProduct::kForward:
      break;
  }
  return DescriptorType::kOperationConvolutionForward;
}

Attribute PartOf(ConvolutionProduct product, cudnn::ConvolutionPart part) {
  const Attribute first = product == ConvolutionProduct::kForward         ? Attribute::kForwardAlpha
                          : product == ConvolutionProduct::kInputGradient ? Attribute::kBackwardDataAlpha
                                                                          : Attribute::kBackwardFilterAlpha;
  // The three convolutions have the same attributes in the same order, from different numbers on.
  return static_cast<Attribute>(static_cast<int>(first) + static_cast<int>(part));
}

// That cuDNN can make no plan of one configuration says nothing about the next.
absl::StatusOr<bool> FalseIfRefused(const absl::Status& status) {
  if (status.ok() || absl::IsUnimplemented(status)) return status.ok();
  return status;
}

absl::StatusOr<std::string> TextOf(const CudnnDescriptor& configuration, int64_t engine) {
  ASSIGN_OR_RETURN(
      const std::vector<CudnnDescriptor> knobs,
      configuration.GetDescriptors(Attribute::kEngineConfigKnobChoices, DescriptorType::kKnobChoice, kKnobsMax));
  std::vector<std::pair<int, int64_t>> choices;
  for (const CudnnDescriptor& knob : knobs) {
    ASSIGN_OR_RETURN(const std::vector<cudnn::KnobType> type,
                     knob.Get<cudnn::KnobType>(Attribute::kKnobChoiceType, AttributeType::kKnobType, 1));
    ASSIGN_OR_RETURN(const std::vector<int64_t> value,
                     knob.Get<int64_t>(Attribute::kKnobChoiceValue, AttributeType::kInt64, 1));
    if (type.empty() || value.empty()) continue;
    choices.emplace_back(static_cast<int>(type[0]), value[0]);
  }
  // Sorted, because ranks compare this text, and cuDNN documents no order of knobs.
  std::sort(choices.begin(), choices.end());
  std::string text = absl::StrCat(engine);
  for (const auto& [type, value] : choices) {
    absl::StrAppend(&text, text.find('(') == std::string::npos ? " (" : " ", type, "=", value);
  }
  return choices.empty() ? text : text + ")";
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudnnProduct>> CudnnProduct::Create(CudaContext* context, const Conv2dSpec& spec,
                                                                   ConvolutionProduct product, Epilogue epilogue) {
  auto made = absl::WrapUnique(new CudnnProduct(context, spec.element));
  absl::Status status = made->BuildGraph(spec, product, epilogue);
  if (status.ok()) status = made->ChooseEngine();
  // cuDNN refuses some shapes while the graph is built, others when an engine is asked for: to the caller both mean
  // that there is no engine.
  if (absl::IsUnimplemented(status)) return absl::NotFoundError(status.message());
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(context->scratch.Reserve(made->workspace_bytes_), "cuDNN's workspace");
  return made;
}

CudnnDescriptor* CudnnProduct::Add(DescriptorType type) {
  parts_.push_back(std::make_unique<CudnnDescriptor>(&context_->cudnn, type));
  return parts_.back().get();
}

// cuDNN names dimensions in the order NCHW; the strides say that memory is in the order NHWC.
absl::StatusOr<CudnnDescriptor*> CudnnProduct::AddTensor(int64_t id, const std::array<int64_t, 4>& nchw, Where where) {
  const auto [n, c, h, w] = nchw;
  CudnnDescriptor* const tensor = Add(DescriptorType::kTensor);
  // Fused operations pass sums on as they are: only what is stored is rounded.
  const bool is_float = where == Where::kVirtual || element_ == Element::kFloat32;
  tensor->Set<cudnn::DataType>(Attribute::kTensorDataType, AttributeType::kDataType,
                               {is_float ? cudnn::DataType::kFloat : cudnn::DataType::kBfloat16});
  tensor->Set<int64_t>(Attribute::kTensorDimensions, AttributeType::kInt64, {n, c, h, w});
  tensor->Set<int64_t>(Attribute::kTensorStrides, AttributeType::kInt64, {h * w * c, 1, w * c, c});
  tensor->Set<int64_t>(Attribute::kTensorUniqueId, AttributeType::kInt64, {id});
  // Every pointer is at least so aligned; what is said here decides which engines may use wide loads.
  tensor->Set<int64_t>(Attribute::kTensorByteAlignment, AttributeType::kInt64, {kAlignmentBytes});
  if (where == Where::kVirtual) tensor->Set<bool>(Attribute::kTensorIsVirtual, AttributeType::kBoolean, {true});
  RETURN_IF_ERROR(tensor->Finalize(), "a tensor");
  return tensor;
}

absl::StatusOr<CudnnDescriptor*> CudnnProduct::AddConvolution(const Conv2dSpec& s, ConvolutionProduct product,
                                                              const CudnnDescriptor& x, const CudnnDescriptor& weight,
                                                              const CudnnDescriptor& y) {
  CudnnDescriptor* const shape = Add(DescriptorType::kConvolution);
  shape->Set<cudnn::DataType>(Attribute::kConvolutionComputeType, AttributeType::kDataType, {cudnn::DataType::kFloat});
  // Networks call this a convolution: the kernel is not mirrored.
  shape->Set<cudnn::ConvolutionMode>(Attribute::kConvolutionMode, AttributeType::kConvolutionMode,
                                     {cudnn::ConvolutionMode::kCrossCorrelation});
  const auto set = [shape](Attribute attribute, std::initializer_list<int64_t> values) {
    shape->Set<int64_t>(attribute, AttributeType::kInt64, values);
  };
  set(Attribute::kConvolutionSpatialDimensions, {2});
  set(Attribute::kConvolutionDilations, {1, 1});
  set(Attribute::kConvolutionFilterStrides, {s.stride_height, s.stride_width});
  set(Attribute::kConvolutionPrePaddings, {s.padding_height, s.padding_width});
  set(Attribute::kConvolutionPostPaddings, {s.padding_height, s.padding_width});
  RETURN_IF_ERROR(shape->Finalize(), "a convolution");

  using Part = cudnn::ConvolutionPart;
  CudnnDescriptor* const operation = Add(OperationOf(product));
  // With alpha 1 and beta 0 the output is overwritten. All three operations know x, weight and y; which of them is
  // written follows from the operation.
  operation->Set<float>(PartOf(product, Part::kAlpha), AttributeType::kFloat, {1});
  operation->Set<float>(PartOf(product, Part::kBeta), AttributeType::kFloat, {0});
  operation->SetDescriptor(PartOf(product, Part::kDescriptor), *shape);
  operation->SetDescriptor(PartOf(product, Part::kWeight), weight);
  operation->SetDescriptor(PartOf(product, Part::kX), x);
  operation->SetDescriptor(PartOf(product, Part::kY), y);
  RETURN_IF_ERROR(operation->Finalize(), "an operation");
  return operation;
}

absl::StatusOr<CudnnDescriptor*> CudnnProduct::AddPointwise(cudnn::PointwiseMode mode, const CudnnDescriptor& x,
                                                            const CudnnDescriptor* b, const CudnnDescriptor& y) {
  CudnnDescriptor* const function = Add(DescriptorType::kPointwise);
  function->Set<cudnn::PointwiseMode>(Attribute::kPointwiseMode, AttributeType::kPointwiseMode, {mode});
  function->Set<cudnn::DataType>(Attribute::kPointwiseMathPrecision, AttributeType::kDataType,
                                 {cudnn::DataType::kFloat});
  RETURN_IF_ERROR(function->Finalize(), "a pointwise function");
  CudnnDescriptor* const operation = Add(DescriptorType::kOperationPointwise);
  operation->SetDescriptor(Attribute::kPointwiseDescriptor, *function);
  operation->SetDescriptor(Attribute::kPointwiseX, x);
  if (b != nullptr) operation->SetDescriptor(Attribute::kPointwiseB, *b);
  operation->SetDescriptor(Attribute::kPointwiseY, y);
  RETURN_IF_ERROR(operation->Finalize(), "a pointwise operation");
  return operation;
}

// A graph of the convolution and the operations that are fused to it: y = relu(convolved + bias), or a part of that.
// Tensors between fused operations are virtual: they are never in memory.
absl::Status CudnnProduct::BuildGraph(const Conv2dSpec& s, ConvolutionProduct product, Epilogue epilogue) {
  const bool fuses = product == ConvolutionProduct::kForward && epilogue == Epilogue::kOfTheSpec;
  const bool adds_bias = fuses && s.bias == Bias::kAdded, relu = fuses && s.activation == Activation::kRelu;
  const std::array<int64_t, 4> out = {s.batch, s.out_channels, s.out_height(), s.out_width()};
  ASSIGN_OR_RETURN(CudnnDescriptor* const x,
                   AddTensor(kX, {s.batch, s.in_channels, s.in_height, s.in_width}, Where::kMemory));
  ASSIGN_OR_RETURN(
      CudnnDescriptor* const weight,
      AddTensor(kWeight, {s.out_channels, s.in_channels, s.kernel_height, s.kernel_width}, Where::kMemory));
  ASSIGN_OR_RETURN(CudnnDescriptor* const y, AddTensor(kY, out, Where::kMemory));

  CudnnDescriptor* last = y;  // what the next operation reads
  if (adds_bias || relu) {
    ASSIGN_OR_RETURN(last, AddTensor(kConvolved, out, Where::kVirtual));
  }
  std::vector<cudnn::Descriptor> operations;
  ASSIGN_OR_RETURN(const CudnnDescriptor* const convolution, AddConvolution(s, product, *x, *weight, *last));
  operations.push_back(convolution->get());
  if (adds_bias) {
    ASSIGN_OR_RETURN(CudnnDescriptor* const bias, AddTensor(kBias, {1, s.out_channels, 1, 1}, Where::kMemory));
    CudnnDescriptor* biased = y;
    if (relu) {
      ASSIGN_OR_RETURN(biased, AddTensor(kBiased, out, Where::kVirtual));
    }
    ASSIGN_OR_RETURN(const CudnnDescriptor* const add, AddPointwise(cudnn::PointwiseMode::kAdd, *last, bias, *biased));
    operations.push_back(add->get());
    last = biased;
  }
  if (relu) {
    ASSIGN_OR_RETURN(const CudnnDescriptor* const clip,
                     AddPointwise(cudnn::PointwiseMode::kReluForward, *last, nullptr, *y));
    operations.push_back(clip->get());
  }
  graph_ = Add(DescriptorType::kOperationGraph);
  graph_->Set<cudnn::Handle>(Attribute::kOperationGraphHandle, AttributeType::kHandle, {context_->cudnn_handle});
  graph_->Set<cudnn::Descriptor>(Attribute::kOperationGraphOperations, AttributeType::kDescriptor,
                                 std::span<const cudnn::Descriptor>(operations));
  return graph_->Finalize();
}

// Mode B predicts better than A and takes longer, but the time is spent once per shape. The fallback list is not
// sorted.
absl::Status CudnnProduct::ChooseEngine() {
  for (const auto mode : {cudnn::HeuristicsMode::kB, cudnn::HeuristicsMode::kA, cudnn::HeuristicsMode::kFallback}) {
    ASSIGN_OR_RETURN(const bool found, TryMode(mode));
    if (found) return absl::OkStatus();
  }
  return absl::NotFoundError("cuDNN has no engine");
}

absl::StatusOr<bool> CudnnProduct::TryMode(cudnn::HeuristicsMode mode) {
  CudnnDescriptor heuristics(&context_->cudnn, DescriptorType::kEngineHeuristics);
  heuristics.SetDescriptor(Attribute::kEngineHeuristicsOperationGraph, *graph_);
  heuristics.Set<cudnn::HeuristicsMode>(Attribute::kEngineHeuristicsMode, AttributeType::kHeuristicsMode, {mode});
  ASSIGN_OR_RETURN(const bool has_results, FalseIfRefused(heuristics.Finalize()));
  if (!has_results) return false;
  ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> configurations,
                   heuristics.GetDescriptors(Attribute::kEngineHeuristicsResults, DescriptorType::kEngineConfig,
                                             kConfigurationsMax));
  for (CudnnDescriptor& configuration : configurations) {
    ASSIGN_OR_RETURN(const bool taken, TryConfiguration(std::move(configuration)));
    if (taken) return true;
  }
  return false;
}

absl::StatusOr<bool> CudnnProduct::TryConfiguration(CudnnDescriptor configuration) {
  ASSIGN_OR_RETURN(const std::vector<CudnnDescriptor> engine,
                   configuration.GetDescriptors(Attribute::kEngineConfigEngine, DescriptorType::kEngine, 1));
  if (engine.size() != 1) return false;
  ASSIGN_OR_RETURN(
      const std::vector<NumericalNote> notes,
      engine[0].Get<NumericalNote>(Attribute::kEngineNumericalNote, AttributeType::kNumericalNote, kNotesMax));
  ASSIGN_OR_RETURN(
      const std::vector<cudnn::BehaviorNote> behavior,
      engine[0].Get<cudnn::BehaviorNote>(Attribute::kEngineBehaviorNote, AttributeType::kBehaviorNote, kNotesMax));
  const bool exact =
      std::all_of(notes.begin(), notes.end(), [this](NumericalNote note) { return MayRound(note, context_->math); });
  const bool compiles = std::count(behavior.begin(), behavior.end(), cudnn::BehaviorNote::kRuntimeCompilation) > 0;
  if (!exact || compiles) return false;

  // Only a finalized plan shows whether the engine can run the shape, and how much workspace it needs.
  CudnnDescriptor plan(&context_->cudnn, DescriptorType::kExecutionPlan);
  plan.Set<cudnn::Handle>(Attribute::kExecutionPlanHandle, AttributeType::kHandle, {context_->cudnn_handle});
  plan.SetDescriptor(Attribute::kExecutionPlanEngineConfig, configuration);
  ASSIGN_OR_RETURN(const bool has_plan, FalseIfRefused(plan.Finalize()));
  if (!has_plan) return false;
  ASSIGN_OR_RETURN(const std::vector<int64_t> workspace_bytes,
                   plan.Get<int64_t>(Attribute::kExecutionPlanWorkspaceSize, AttributeType::kInt64, 1));
  if (workspace_bytes.size() != 1 || workspace_bytes[0] > kWorkspaceBytesMax) return false;
  ASSIGN_OR_RETURN(const std::vector<int64_t> number,
                   engine[0].Get<int64_t>(Attribute::kEngineGlobalIndex, AttributeType::kInt64, 1));
  // Ranks compare this text, so it must say all that the choice has decided: engine and knobs.
  ASSIGN_OR_RETURN(engine_, TextOf(configuration, number.empty() ? -1 : number[0]));
  workspace_bytes_ = workspace_bytes[0];
  configuration_.emplace(std::move(configuration));
  plan_.emplace(std::move(plan));
  return true;
}

// Allocates host memory only, so it may be called during a capture.
absl::Status CudnnProduct::Prepare(const Tensors& tensors, Pack* pack) const {
  // The address is asked for at every call: the scratch memory moves when another operation reserves more.
  const float* const workspace = workspace_bytes_ == 0 ? nullptr : context_->scratch.floats();
  if (pack->descriptor.has_value() && tensors == pack->tensors && workspace == pack->workspace) return absl::OkStatus();
  std::vector<int64_t> ids = {kX, kWeight, kY};
  std::vector<const void*> pointers = {tensors.x, tensors.weight, tensors.y};
  // A tensor that the graph does not have would be refused.
  if (tensors.bias != nullptr) {
    ids.push_back(kBias);
    pointers.push_back(tensors.bias);
  }
  CudnnDescriptor& descriptor = pack->descriptor.emplace(&context_->cudnn, DescriptorType::kVariantPack);
  descriptor.Set<int64_t>(Attribute::kVariantPackUniqueIds, AttributeType::kInt64, std::span<const int64_t>(ids));
  descriptor.Set<const void*>(Attribute::kVariantPackDataPointers, AttributeType::kVoidPointer,
                              std::span<const void* const>(pointers));
  descriptor.Set<const void*>(Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, {workspace});
  pack->tensors = tensors;
  pack->workspace = workspace;
  return descriptor.Finalize();
}

absl::Status CudnnProduct::Run(const Tensors& tensors, Pack* pack) const {
  // In a capture the graph keeps the pointers. A Pack that is made again later does not change them.
  RETURN_IF_ERROR(Prepare(tensors, pack), "the arguments of a convolution");
  return CudnnStatus(context_->cudnn,
                     context_->cudnn.execute(context_->cudnn_handle, plan_->get(), pack->descriptor->get()),
                     "cudnnBackendExecute");
}

}  // namespace starring
