// The compiler compares our declarations with cuDNN's own header, where the machine has one.
#include "kernels/cuda/cudnn_interface.h"

#include "gtest/gtest.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define STARRING_HAS_CUDNN_HEADER
#endif

namespace starring::cudnn {
namespace {

#ifdef STARRING_HAS_CUDNN_HEADER
template <typename Ours, typename Theirs>
constexpr bool Is(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(Is(Status::kSuccess, ::CUDNN_STATUS_SUCCESS));
static_assert(Is(Status::kNotInitialized, ::CUDNN_STATUS_NOT_INITIALIZED));
static_assert(Is(Status::kBadParameter, ::CUDNN_STATUS_BAD_PARAM));
static_assert(Is(Status::kNotFinalized, ::CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED));
static_assert(Is(Status::kNotSupported, ::CUDNN_STATUS_NOT_SUPPORTED));
static_assert(Is(Status::kInternalError, ::CUDNN_STATUS_INTERNAL_ERROR));
static_assert(Is(DescriptorType::kPointwise, ::CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(Is(DescriptorType::kConvolution, ::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
static_assert(Is(DescriptorType::kEngine, ::CUDNN_BACKEND_ENGINE_DESCRIPTOR));
static_assert(Is(DescriptorType::kEngineConfig, ::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(Is(DescriptorType::kEngineHeuristics, ::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(Is(DescriptorType::kExecutionPlan, ::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(Is(DescriptorType::kKnobChoice, ::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
static_assert(Is(DescriptorType::kOperationConvolutionForward,
                 ::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR));
static_assert(Is(DescriptorType::kOperationConvolutionBackwardFilter,
                 ::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR));
static_assert(Is(DescriptorType::kOperationConvolutionBackwardData,
                 ::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR));
static_assert(Is(DescriptorType::kOperationPointwise, ::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(Is(DescriptorType::kOperationGraph, ::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(Is(DescriptorType::kVariantPack, ::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(Is(DescriptorType::kTensor, ::CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(Is(Attribute::kPointwiseMode, ::CUDNN_ATTR_POINTWISE_MODE));
static_assert(Is(Attribute::kPointwiseMathPrecision, ::CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(Is(Attribute::kConvolutionComputeType, ::CUDNN_ATTR_CONVOLUTION_COMP_TYPE));
static_assert(Is(Attribute::kConvolutionMode, ::CUDNN_ATTR_CONVOLUTION_CONV_MODE));
static_assert(Is(Attribute::kConvolutionDilations, ::CUDNN_ATTR_CONVOLUTION_DILATIONS));
static_assert(Is(Attribute::kConvolutionFilterStrides, ::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES));
static_assert(Is(Attribute::kConvolutionPostPaddings, ::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS));
static_assert(Is(Attribute::kConvolutionPrePaddings, ::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS));
static_assert(Is(Attribute::kConvolutionSpatialDimensions, ::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
static_assert(Is(Attribute::kEngineHeuristicsMode, ::CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(Is(Attribute::kEngineHeuristicsOperationGraph, ::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(Is(Attribute::kEngineHeuristicsResults, ::CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(Is(Attribute::kEngineConfigEngine, ::CUDNN_ATTR_ENGINECFG_ENGINE));
static_assert(Is(Attribute::kEngineConfigKnobChoices, ::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES));
static_assert(Is(Attribute::kExecutionPlanHandle, ::CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
static_assert(Is(Attribute::kExecutionPlanEngineConfig, ::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(Is(Attribute::kExecutionPlanWorkspaceSize, ::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(Is(Attribute::kKnobChoiceType, ::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
static_assert(Is(Attribute::kKnobChoiceValue, ::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
static_assert(Is(Attribute::kPointwiseDescriptor, ::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(Is(Attribute::kPointwiseX, ::CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(Is(Attribute::kPointwiseB, ::CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(Is(Attribute::kPointwiseY, ::CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(Is(Attribute::kOperationGraphHandle, ::CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
static_assert(Is(Attribute::kOperationGraphOperations, ::CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(Is(Attribute::kTensorByteAlignment, ::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(Is(Attribute::kTensorDataType, ::CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(Is(Attribute::kTensorDimensions, ::CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(Is(Attribute::kTensorStrides, ::CUDNN_ATTR_TENSOR_STRIDES));
static_assert(Is(Attribute::kTensorUniqueId, ::CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(Is(Attribute::kTensorIsVirtual, ::CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(Is(Attribute::kVariantPackUniqueIds, ::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(Is(Attribute::kVariantPackDataPointers, ::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(Is(Attribute::kVariantPackWorkspace, ::CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(Is(Attribute::kEngineGlobalIndex, ::CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
static_assert(Is(Attribute::kEngineNumericalNote, ::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE));
static_assert(Is(Attribute::kEngineBehaviorNote, ::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE));
static_assert(Is(AttributeType::kHandle, ::CUDNN_TYPE_HANDLE));
static_assert(Is(AttributeType::kDataType, ::CUDNN_TYPE_DATA_TYPE));
static_assert(Is(AttributeType::kBoolean, ::CUDNN_TYPE_BOOLEAN));
static_assert(Is(AttributeType::kInt64, ::CUDNN_TYPE_INT64));
static_assert(Is(AttributeType::kFloat, ::CUDNN_TYPE_FLOAT));
static_assert(Is(AttributeType::kVoidPointer, ::CUDNN_TYPE_VOID_PTR));
static_assert(Is(AttributeType::kConvolutionMode, ::CUDNN_TYPE_CONVOLUTION_MODE));
static_assert(Is(AttributeType::kHeuristicsMode, ::CUDNN_TYPE_HEUR_MODE));
static_assert(Is(AttributeType::kKnobType, ::CUDNN_TYPE_KNOB_TYPE));
static_assert(Is(AttributeType::kNumericalNote, ::CUDNN_TYPE_NUMERICAL_NOTE));
static_assert(Is(AttributeType::kPointwiseMode, ::CUDNN_TYPE_POINTWISE_MODE));
static_assert(Is(AttributeType::kDescriptor, ::CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(Is(AttributeType::kBehaviorNote, ::CUDNN_TYPE_BEHAVIOR_NOTE));
static_assert(Is(DataType::kFloat, ::CUDNN_DATA_FLOAT));
static_assert(Is(DataType::kBfloat16, ::CUDNN_DATA_BFLOAT16));
static_assert(Is(ConvolutionMode::kCrossCorrelation, ::CUDNN_CROSS_CORRELATION));
static_assert(Is(PointwiseMode::kAdd, ::CUDNN_POINTWISE_ADD));
static_assert(Is(PointwiseMode::kReluForward, ::CUDNN_POINTWISE_RELU_FWD));
static_assert(Is(HeuristicsMode::kA, ::CUDNN_HEUR_MODE_A));
static_assert(Is(HeuristicsMode::kB, ::CUDNN_HEUR_MODE_B));
static_assert(Is(HeuristicsMode::kFallback, ::CUDNN_HEUR_MODE_FALLBACK));
static_assert(Is(NumericalNote::kTensorCore, ::CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
static_assert(Is(NumericalNote::kDownConvertInputs, ::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
static_assert(Is(NumericalNote::kReducedPrecisionReduction, ::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
static_assert(Is(NumericalNote::kFft, ::CUDNN_NUMERICAL_NOTE_FFT));
static_assert(Is(NumericalNote::kNondeterministic, ::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
static_assert(Is(NumericalNote::kWinograd, ::CUDNN_NUMERICAL_NOTE_WINOGRAD));
static_assert(Is(NumericalNote::kStrictNanPropagation, ::CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP));
static_assert(Is(BehaviorNote::kRuntimeCompilation, ::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION));

// The attributes of the three convolutions, each in our order of parts.
constexpr int Part(Attribute alpha, ConvolutionPart part) { return static_cast<int>(alpha) + static_cast<int>(part); }

static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kAlpha) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kBeta) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kDescriptor) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kWeight) == ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kX) == ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
static_assert(Part(Attribute::kForwardAlpha, ConvolutionPart::kY) == ::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kAlpha) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kBeta) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kDescriptor) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kWeight) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kX) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
static_assert(Part(Attribute::kBackwardDataAlpha, ConvolutionPart::kY) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kAlpha) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kBeta) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kDescriptor) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kWeight) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kX) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
static_assert(Part(Attribute::kBackwardFilterAlpha, ConvolutionPart::kY) ==
              ::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
// cuDNN copies attributes as bytes, so the sizes of their elements must agree.
static_assert(sizeof(Status) == sizeof(::cudnnStatus_t) &&
              sizeof(NumericalNote) == sizeof(::cudnnBackendNumericalNote_t));
#endif

TEST(CudnnInterface, HasTheHeadersNumbers) {
#ifndef STARRING_HAS_CUDNN_HEADER
  GTEST_SKIP() << "there is no cudnn_graph.h in the CUDA toolkit";
#endif
}

}  // namespace
}  // namespace starring::cudnn
