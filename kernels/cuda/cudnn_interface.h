// The part of cuDNN 9's backend interface that we use: opaque descriptors with attributes, of which graphs of
// operations, engines and plans are made.
//
// It is declared here and not included, because no CUDA toolkit has cuDNN's headers: a build would need cuDNN. The
// numbers are the binary interface of libcudnn.so.9, from cudnn_graph.h of 9.19.0; cuDNN adds numbers, but changes
// none. tests/kernels/cuda/cudnn_interface_test.cc compares them with that header where it is installed.
#ifndef STARRING_KERNELS_CUDA_CUDNN_INTERFACE_H_
#define STARRING_KERNELS_CUDA_CUDNN_INTERFACE_H_

namespace starring::cudnn {

using Handle = struct HandleOfCudnn*;
using Descriptor = void*;

// Categories have a thousand numbers each: 2000 bad parameters, 3000 not supported, 4000 internal, 5000 execution
// failed.
enum class Status : int {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParameter = 2000,
  kNotFinalized = 2004,
  kNotSupported = 3000,
  kInternalError = 4000,
};
inline bool IsRefusal(Status status) { return static_cast<int>(status) / 2000 == 1; }  // 2000 to 3999

enum class DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kKnobChoice = 7,
  kOperationConvolutionForward = 10,
  kOperationConvolutionBackwardFilter = 11,
  kOperationConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};

enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kConvolutionComputeType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionFilterStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDimensions = 106,
  kEngineHeuristicsMode = 200,
  kEngineHeuristicsOperationGraph = 201,
  kEngineHeuristicsResults = 202,
  kEngineConfigEngine = 300,
  kEngineConfigKnobChoices = 302,
  kExecutionPlanHandle = 400,
  kExecutionPlanEngineConfig = 401,
  kExecutionPlanWorkspaceSize = 402,
  kKnobChoiceType = 600,
  kKnobChoiceValue = 601,
  // The first attribute of each of the three convolutions; ConvolutionPart counts on from it.
  kForwardAlpha = 700,
  kBackwardDataAlpha = 706,
  kBackwardFilterAlpha = 712,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kOperationGraphHandle = 800,
  kOperationGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineGlobalIndex = 1301,
  kEngineNumericalNote = 1303,
  kEngineBehaviorNote = 1305,
};
// An attribute of a convolution, counted from its alpha.
enum class ConvolutionPart : int { kAlpha = 0, kBeta = 1, kDescriptor = 2, kWeight = 3, kX = 4, kY = 5 };

// The type of an attribute's elements.
enum class AttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kVoidPointer = 6,
  kConvolutionMode = 7,
  kHeuristicsMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kBehaviorNote = 19,
};

enum class DataType : int { kFloat = 0, kBfloat16 = 9 };
enum class ConvolutionMode : int { kCrossCorrelation = 1 };
enum class PointwiseMode : int { kAdd = 0, kReluForward = 100 };
enum class HeuristicsMode : int { kB = 1, kFallback = 2, kA = 3 };
enum class KnobType : int {};

enum class NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kStrictNanPropagation = 9,
};
enum class BehaviorNote : int { kRuntimeCompilation = 0 };

}  // namespace starring::cudnn

#endif  // STARRING_KERNELS_CUDA_CUDNN_INTERFACE_H_
