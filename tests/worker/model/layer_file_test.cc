#include "worker/model/layer_file.h"

#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/layer_file.pb.h"
#include "worker/model/layer_table.h"
#include "worker/model/network_graph.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr NetworkGraph::DataShape kMnist{.height = 28, .width = 28, .channels = 1, .outputs = 10};
constexpr NetworkGraph::DataShape kCifar{.height = 32, .width = 32, .channels = 3, .outputs = 10};

// The error message for `text`: the parser's or, with MNIST's images, the graph's.
std::string ErrorOf(const std::string& text, const NetworkGraph::DataShape& data = kMnist) {
  absl::StatusOr<LayerFile> file = LayerFile::Parse(text, "my.textproto");
  if (!file.ok()) {
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(file.status().message());
  }
  absl::StatusOr<NetworkGraph> graph = NetworkGraph::Create(*file, data);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(graph.status().message());
}

NetworkGraph GraphOf(const absl::StatusOr<LayerFile>& file, const NetworkGraph::DataShape& data = kMnist) {
  EXPECT_TRUE(file.ok()) << file.status();
  absl::StatusOr<NetworkGraph> graph = NetworkGraph::Create(*file, data);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::string WriteTemporary(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path) << text;
  return path;
}

TEST(LayerFileTest, ShippedModelsHaveTheKnownParameterCounts) {
  EXPECT_EQ(GraphOf(LayerFile::Load("logreg")).layout().parameter_count(), 7850);
  EXPECT_EQ(GraphOf(LayerFile::Load("mlp")).layout().parameter_count(), 1863690);
  EXPECT_EQ(GraphOf(LayerFile::Load("lenet5")).layout().parameter_count(), 61706);
  EXPECT_EQ(GraphOf(LayerFile::Load("mnist_cnn")).layout().parameter_count(), 1199882);
  EXPECT_EQ(GraphOf(LayerFile::Load("resnet20"), kCifar).layout().parameter_count(), 272474);
  EXPECT_EQ(GraphOf(LayerFile::Load("resnet18"), kCifar).layout().parameter_count(), 11173962);
  EXPECT_EQ(GraphOf(LayerFile::Load("mobilenet_v2"), kCifar).layout().parameter_count(), 2236682);
  constexpr NetworkGraph::DataShape kTable{.height = 1, .width = 1, .channels = 14, .outputs = 2};
  EXPECT_EQ(GraphOf(LayerFile::Load("tabular_mlp"), kTable).layout().parameter_count(), 37378);
}

TEST(LayerFileTest, ShippedModelsAreFoundFromAnyWorkingDirectory) {
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof before), nullptr);
  ASSERT_EQ(chdir("/"), 0);
  EXPECT_TRUE(LayerFile::Load("lenet5").ok());
  ASSERT_EQ(chdir(before), 0);
}

TEST(LayerFileTest, LayoutHasPyTorchsNamesAndShapes) {
  const NetworkGraph graph = GraphOf(LayerFile::Load("lenet5"));
  std::map<std::string, std::vector<int64_t>> dims;
  for (const Tensor& tensor : graph.layout().tensors()) dims[tensor.spec.name] = tensor.spec.dims;
  EXPECT_THAT(dims["conv1.weight"], ElementsAre(6, 5, 5, 1));
  EXPECT_THAT(dims["conv2.bias"], ElementsAre(16));
  EXPECT_THAT(dims["fc1.weight"], ElementsAre(120, 5, 5, 16));
  EXPECT_THAT(dims["fc2.weight"], ElementsAre(84, 120));
  const TensorSpec& fc1 = graph.layout().tensors()[4].spec;
  EXPECT_EQ(fc1.name, "fc1.weight");
  EXPECT_THAT(fc1.torch_axes, ElementsAre(0, 3, 1, 2));
  EXPECT_THAT(fc1.torch_shape, ElementsAre(120, 400));
}

TEST(LayerFileTest, LayerRangesCoverTheVectorInOrder) {
  const NetworkGraph graph = GraphOf(LayerFile::Load("resnet20"), kCifar);
  int64_t end = 0;
  for (size_t l = 0; l < graph.layers().size(); ++l) {
    const ElementRange range = graph.LayerRange(static_cast<int>(l));
    if (graph.layers()[l].tensor_count == 0) {
      EXPECT_EQ(range.size(), 0);
      continue;
    }
    EXPECT_EQ(range.begin, end) << graph.layers()[l].name;
    end = range.end;
  }
  EXPECT_EQ(end, graph.layout().element_count());
}

TEST(LayerFileTest, OwnFileWorksByPath) {
  const std::string path = WriteTemporary("own.textproto", "layer { name: \"fc\" dense { units: 10 } }");
  absl::StatusOr<LayerFile> file = LayerFile::Load(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->file_name(), path);
  EXPECT_EQ(file->definition().layer(0).name(), "fc");
}

TEST(LayerFileTest, UnknownNameListsTheShippedOnes) {
  const absl::Status status = LayerFile::Load("lenet6").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("lenet5, logreg, mlp, mnist_cnn, mobilenet_v2, resnet18, resnet20, tabular_mlp"));
}

TEST(LayerFileTest, MissingFileSaysWhere) {
  const absl::Status status = LayerFile::Load("/no/such/file.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/file.textproto: No such file or directory"));
  EXPECT_EQ(LayerFile::Load(testing::TempDir()).status().code(), absl::StatusCode::kInvalidArgument) << "a folder";
}

TEST(LayerFileTest, HugeFileIsRefused) {
  const std::string path = WriteTemporary("huge.textproto", std::string(kLayerFileBytesMax + 1, '#'));
  const absl::Status status = LayerFile::Load(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("longer than 1048576 bytes"));
}

TEST(LayerFileTest, TextErrorsHaveLineAndColumn) {
  EXPECT_THAT(ErrorOf("name: \"x\"\nlayer { name: \"fc\"\n  dense { unit: 10 } }"),
              AllOf(StartsWith("my.textproto:3:"), HasSubstr("unit")));
  EXPECT_THAT(ErrorOf("layer { name: \"fc\" dense { units: ten } }"),
              AllOf(StartsWith("my.textproto:1:35: "), HasSubstr("ten")));
  EXPECT_THAT(ErrorOf("layer {\n"), StartsWith("my.textproto:2:1: "));
  EXPECT_THAT(ErrorOf("layer { name: \"fc\" dense { units: 10 } relu {} }"), StartsWith("my.textproto:1:"));
  EXPECT_THAT(ErrorOf(""), StartsWith("my.textproto:1:1: there is no layer"));
  EXPECT_THAT(ErrorOf(std::string("\0\xff\x01", 3)), StartsWith("my.textproto:1:"));
}

// In the words of tests/worker/python/layer_file_test.py.
TEST(LayerFileTest, AKindOrFieldThatIsNoneListsThoseThatAre) {
  EXPECT_THAT(ErrorOf("layer { name: \"n\" layer_nrm {} }"),
              AllOf(StartsWith("my.textproto:1:"),
                    HasSubstr(": Layer has no field \"layer_nrm\", its fields are: name, input, conv2d, dense, "),
                    EndsWith(", group_norm, layer_norm")));
  EXPECT_THAT(ErrorOf("layer { name: \"fc\" dense { unit: 10 } }"),
              EndsWith(": Dense has no field \"unit\", its fields are: units, relu, no_bias, activation"));
  EXPECT_THAT(ErrorOf("layer { name: \"fc\" dense {} } loss { mse { x: 1 } }"),
              EndsWith(": MseLoss has no field \"x\", its fields are: none"));
  EXPECT_THAT(ErrorOf("lair {}"),
              EndsWith(": ModelDefinition has no field \"lair\", its fields are: name, layer, loss"));
}

// tests/worker/python/layer_file_test.py has the same two sentences.
TEST(LayerFileTest, AConcatHas64InputsAtMost) {
  std::string inputs;
  for (int i = 0; i < 64; ++i) inputs += "input: \"r\" ";
  const std::string above = "layer { name: \"r\" relu {} }\nlayer { name: \"j\" ";
  const std::string below = "concat {} }\nlayer { name: \"fc\" dense {} }";
  EXPECT_TRUE(LayerFile::Parse(above + inputs + below, "my.textproto").ok());
  EXPECT_EQ(ErrorOf(above + inputs + "input: \"r\" " + below),
            "my.textproto:2:19: layer j: has 65 inputs, concat takes at most 64: join some of them before");
}

TEST(LayerFileTest, ALongFunctionIsShortened) {
  EXPECT_EQ(ErrorOf("layer { name: \"a\" activation { function: \"\\n" + std::string(1000, 'x') + "\" } }"),
            "my.textproto:1:32: layer a: function is \"?" + std::string(31, 'x') +
                "...\", it must be relu6, sigmoid, tanh, gelu, gelu_tanh, silu or leaky_relu");
}

struct WrongFile {
  const char* name;
  const char* text;
  const char* error;
};
void PrintTo(const WrongFile& wrong, std::ostream* out) { *out << wrong.name; }

class LayerFileErrorTest : public testing::TestWithParam<WrongFile> {};

TEST_P(LayerFileErrorTest, IsRefusedWithLineAndReason) { EXPECT_EQ(ErrorOf(GetParam().text), GetParam().error); }

INSTANTIATE_TEST_SUITE_P(
    Inputs, LayerFileErrorTest,
    testing::Values(
        WrongFile{"Unknown", "layer { name: \"a\" relu {} }\nlayer { name: \"fc\" input: \"b\" dense { units: 10 } }",
                  "my.textproto:2:20: layer fc: reads layer b, which does not exist"},
        WrongFile{"Cycle", "layer { name: \"a\" input: \"a\" relu {} }\nlayer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:1:19: layer a: reads its own output, which makes a cycle"},
        WrongFile{"ForwardReference",
                  "layer { name: \"a\" input: \"fc\" relu {} }\nlayer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:1:19: layer a: reads layer fc, which comes below it: put layers in forward order, "
                  "without cycles"},
        WrongFile{"AddOfOne", "layer { name: \"a\" add {} }\nlayer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:1:19: layer a: has 0 inputs, add needs 2"},
        WrongFile{"DenseOfTwo", "layer { name: \"fc\" input: \"input\" input: \"input\" dense { units: 10 } }",
                  "my.textproto:1:20: layer fc: has 2 inputs, this kind of layer takes 1"},
        WrongFile{"Unread",
                  "layer { name: \"a\" relu {} }\nlayer { name: \"b\" input: \"input\" relu {} }\n"
                  "layer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:1:9: layer a: its output is read by no layer"}),
    [](const testing::TestParamInfo<WrongFile>& wrong) { return wrong.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Shapes, LayerFileErrorTest,
    testing::Values(
        WrongFile{"BelowOne",
                  "layer { name: \"p\" max_pool { kernel: 9 } }\n"
                  "layer { name: \"c\"\n  conv2d { out_channels: 4\n    kernel: 6 padding: 1 } }\n"
                  "layer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:4:5: layer c: kernel 6 is larger than its input, 3 x 3 x 1 with padding 1: the output "
                  "would have a size below 1"},
        WrongFile{"WrongUnits", "layer { name: \"fc\"\n  dense {\n units: 12 } }",
                  "my.textproto:3:2: layer fc: is the last layer and has 12 outputs, the data set has 10 classes: both "
                  "must be equal, so leave `units` out"},
        WrongFile{"WrongOutputs", "layer { name: \"g\" global_average_pool {} }",
                  "my.textproto:1:19: layer g: is the last layer and has 1 outputs, the data set has 10 classes: both "
                  "must be equal"},
        WrongFile{"LastIsAnImage", "layer { name: \"c\" conv2d { out_channels: 10 kernel: 3 } }",
                  "my.textproto:1:19: layer c: is the last layer, its output must be 10 numbers a sample, it is 26 x "
                  "26 x 10: end with dense {}"},
        WrongFile{
            "ConvBehindDense",
            "layer { name: \"fc\" dense { units: 10 } }\nlayer { name: \"c\" conv2d { out_channels: 10 kernel: 1 } }",
            "my.textproto:2:19: layer c: needs an image, its input is 10 (flat)"},
        WrongFile{"AddOfDifferentShapes",
                  "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 } }\n"
                  "layer { name: \"a\" input: \"c\" input: \"input\" add {} }\n"
                  "layer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:2:19: layer a: adds 26 x 26 x 2 (c) and 28 x 28 x 1 (input): both must have one shape"},
        WrongFile{
            "NormOfFlattened",
            "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 } }\n"
            "layer { name: \"f\" flatten {} }\nlayer { name: \"n\" batch_norm {} }\n"
            "layer { name: \"fc\" dense { units: 10 } }",
            "my.textproto:3:19: layer n: batch_norm of a flattened image is not supported: put it before flatten"}),
    [](const testing::TestParamInfo<WrongFile>& wrong) { return wrong.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Fields, LayerFileErrorTest,
    testing::Values(
        WrongFile{"SameName", "layer { name: \"fc\" relu {} }\nlayer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:2:9: layer fc: the name is used by two layers, numbers 1 and 2"},
        WrongFile{"NoName", "layer { relu {} }", "my.textproto:1:9: layer 1: has no name"},
        WrongFile{"NameOfTheImage", "layer { name: \"input\" relu {} }",
                  "my.textproto:1:9: layer input: the name \"input\" is the image's, choose another"},
        WrongFile{"SpaceInName", "layer { name: \"f c\" relu {} }",
                  "my.textproto:1:9: layer f c: the name has the character ' ', allowed are letters, digits, '_', '-' "
                  "and '.'"},
        WrongFile{"NoUnits", "layer { name: \"fc\" dense {} }\nlayer { name: \"last\" dense {} }",
                  "my.textproto:1:20: layer fc: units is 0, it must be from 1 to 1048576"},
        WrongFile{"LongKernel", "layer { name: \"c\" conv2d { out_channels: 2 kernel: 4097 } }",
                  "my.textproto:1:44: layer c: kernel is 4097, it must be from 1 to 4096"},
        WrongFile{"LongStride", "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 stride: 4097 } }",
                  "my.textproto:1:54: layer c: stride is 4097, it must be from 0 to 4096"},
        WrongFile{"NegativePadding", "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 padding: -1 } }",
                  "my.textproto:1:54: layer c: padding is -1, it must be from 0 to 4096"},
        WrongFile{"PoolOfPaddingAlone", "layer { name: \"p\" max_pool { kernel: 3 padding: 2 } }",
                  "my.textproto:1:40: layer p: padding is 2, it must be from 0 to 1"},
        WrongFile{"DropoutOfAll", "layer { name: \"d\" dropout { rate: 1 } }",
                  "my.textproto:1:29: layer d: rate is 1, it must be 0 or more and below 1"},
        WrongFile{"DropoutOfNan", "layer { name: \"d\" dropout { rate: nan } }",
                  "my.textproto:1:29: layer d: rate is nan, it must be 0 or more and below 1"},
        WrongFile{"NegativeEpsilon", "layer { name: \"n\" batch_norm { epsilon: -1 } }",
                  "my.textproto:1:32: layer n: epsilon is -1, it must be 0 or more (0 means 1e-5)"},
        WrongFile{
            "UnknownActivation", "layer { name: \"a\" activation { function: \"swish\" } }",
            "my.textproto:1:32: layer a: function is \"swish\", it must be relu6, sigmoid, tanh, gelu, gelu_tanh, silu "
            "or leaky_relu"},
        WrongFile{"UnknownActivationField", "layer { name: \"fc\" dense { units: 2 activation: \"relu\" } }",
                  "my.textproto:1:37: layer fc: activation is \"relu\", it must be relu6, sigmoid, tanh, gelu, "
                  "gelu_tanh, silu or leaky_relu"},
        WrongFile{"TwoActivations", "layer { name: \"fc\" dense { units: 2 relu: true activation: \"silu\" } }",
                  "my.textproto:1:48: layer fc: has relu and an activation, it can have one of them"},
        WrongFile{"SlopeOfNan", "layer { name: \"a\" activation { function: \"leaky_relu\" slope: nan } }",
                  "my.textproto:1:55: layer a: slope is nan, it must be 0 or more (0 means 0.01)"},
        WrongFile{"SlopeOfSilu", "layer { name: \"a\" activation { function: \"silu\" slope: 0.5 } }",
                  "my.textproto:1:49: layer a: slope is 0.5, which only leaky_relu has"},
        WrongFile{"ScaleByNothing", "layer { name: \"s\" scale {} }",
                  "my.textproto:1:19: layer s: factor is 0, it must be a finite number other than 0"},
        WrongFile{"DepthwiseOfOtherChannels",
                  "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 depthwise: true } }\n"
                  "layer { name: \"fc\" dense {} }",
                  "my.textproto:1:28: layer c: out_channels is 2, a depthwise convolution has as many as its input, 1: "
                  "leave it out"},
        WrongFile{"AverageOfPaddingAlone", "layer { name: \"p\" average_pool { kernel: 3 padding: 2 } }",
                  "my.textproto:1:44: layer p: padding is 2, it must be from 0 to 1"},
        WrongFile{"ConcatOfOne", "layer { name: \"c\" relu {} }\nlayer { name: \"j\" input: \"c\" concat {} }",
                  "my.textproto:2:19: layer j: has 1 inputs, concat needs 2 or more"},
        WrongFile{
            "ConcatOfShapes",
            "layer { name: \"p\" max_pool { kernel: 2 } }\nlayer { name: \"j\" input: \"p\" input: \"input\" concat {} "
            "}\nlayer { name: \"fc\" dense {} }",
            "my.textproto:2:19: layer j: joins 14 x 14 x 1 (p) and 28 x 28 x 1 (input): all must have one height "
            "and width"},
        WrongFile{"ConcatOfAFlatInput",
                  "layer { name: \"p\" max_pool { kernel: 28 } }\n"
                  "layer { name: \"g\" input: \"input\" global_average_pool {} }\n"
                  "layer { name: \"j\" input: \"g\" input: \"p\" concat {} }\nlayer { name: \"fc\" dense {} }",
                  "my.textproto:3:19: layer j: joins 1 (flat) (g) and 1 x 1 x 1 (p): all must be flat or none, put a "
                  "flatten layer after p"},
        WrongFile{"NoKind", "\n\n  layer { name: \"fc\" }",
                  "my.textproto:3:11: layer fc: has no kind: add conv2d, dense, relu, max_pool, global_average_pool, "
                  "batch_norm, dropout, add, flatten, activation, scale, average_pool, concat, group_norm or "
                  "layer_norm"},
        WrongFile{"ConcatOfFlattened",
                  "layer { name: \"f\" flatten {} }\nlayer { name: \"j\" input: \"f\" input: \"f\" concat {} }\n"
                  "layer { name: \"fc\" dense {} }",
                  "my.textproto:2:41: layer j: concat of a flattened image is not supported: put it before flatten"},
        WrongFile{"NoGroups", "layer { name: \"n\" group_norm {} }",
                  "my.textproto:1:19: layer n: groups is 0, it must be from 1 to 1048576"},
        WrongFile{"UnequalGroups", "layer { name: \"n\" group_norm { groups: 2 } }\nlayer { name: \"fc\" dense {} }",
                  "my.textproto:1:32: layer n: groups is 2, its input has 1 channels: all groups must have as many"},
        WrongFile{
            "GroupNormOfFlattened",
            "layer { name: \"f\" flatten {} }\nlayer { name: \"n\" group_norm { groups: 1 } }\n"
            "layer { name: \"fc\" dense {} }",
            "my.textproto:2:19: layer n: group_norm of a flattened image is not supported: put it before flatten"},
        WrongFile{
            "LayerNormOfFlattened",
            "layer { name: \"f\" flatten {} }\nlayer { name: \"n\" layer_norm {} }\nlayer { name: \"fc\" dense {} }",
            "my.textproto:2:19: layer n: layer_norm of a flattened image is not supported: put it before flatten"},
        WrongFile{"MomentumAboveOne", "layer { name: \"n\" batch_norm { momentum: 1.5 } }",
                  "my.textproto:1:32: layer n: momentum is 1.5, it must be from 0 to 1 (0 means 0.1)"}),
    [](const testing::TestParamInfo<WrongFile>& wrong) { return wrong.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Losses, LayerFileErrorTest,
    testing::Values(
        WrongFile{"SmoothingOfAll",
                  "loss {\n  softmax { label_smoothing: 1 } }\nlayer { name: \"fc\" dense { units: 10 } }",
                  "my.textproto:2:13: loss: label_smoothing is 1, it must be 0 or more and below 1"},
        WrongFile{"NegativeSmoothing", "layer { name: \"fc\" dense {} }\nloss { softmax { label_smoothing: -0.5 } }",
                  "my.textproto:2:18: loss: label_smoothing is -0.5, it must be 0 or more and below 1"},
        WrongFile{"SmoothingOfNan", "layer { name: \"fc\" dense {} } loss { softmax { label_smoothing: nan } }",
                  "my.textproto:1:48: loss: label_smoothing is nan, it must be 0 or more and below 1"},
        WrongFile{
            "LossWithoutKind", "layer { name: \"fc\" dense {} }\n loss {}",
            "my.textproto:2:2: loss: has no kind: write loss { softmax {} }, loss { mse {} } or loss { bce {} }"}),
    [](const testing::TestParamInfo<WrongFile>& wrong) { return wrong.param.name; });

TEST(LayerFileTest, OnlyALossThatIsNotTheDefaultChangesTheDigest) {
  const auto digest = [](const std::string& loss) {
    return LayerFile::Parse("layer { name: \"fc\" dense {} } " + loss, "")->Digest(10);
  };
  EXPECT_EQ(digest("loss { softmax {} }"), digest(""));
  EXPECT_EQ(digest("loss { softmax { label_smoothing: -0 } }"), digest(""));
  EXPECT_NE(digest("loss { softmax { label_smoothing: 0.1 } }"), digest(""));
  EXPECT_NE(digest("loss { mse {} }"), digest(""));
  EXPECT_NE(digest("loss { mse {} }"), digest("loss { bce {} }"));
  EXPECT_NE(digest("loss { softmax { label_smoothing: 0.1 } }"), digest("loss { softmax { label_smoothing: 0.2 } }"));
}

TEST(NetworkGraphTest, TheLossIsTheFiles) {
  const std::string layer = "layer { name: \"fc\" dense {} } ";
  EXPECT_EQ(GraphOf(LayerFile::Parse(layer, "a")).loss().label_smoothing, 0);
  EXPECT_EQ(GraphOf(LayerFile::Parse(layer, "a")).loss().kind, LossKind::kSoftmax);
  EXPECT_EQ(GraphOf(LayerFile::Parse(layer + "loss { mse {} }", "a")).loss().kind, LossKind::kMse);
  EXPECT_EQ(GraphOf(LayerFile::Parse(layer + "loss { bce {} }", "a")).loss().kind, LossKind::kBce);
  EXPECT_EQ(GraphOf(LayerFile::Parse(layer + "loss { softmax { label_smoothing: 0.1 } }", "a")).loss().label_smoothing,
            0.1f);
}

TEST(LayerFileTest, NothingToTrainIsRefused) {
  EXPECT_EQ(
      ErrorOf("layer { name: \"g\" global_average_pool {} }", {.height = 2, .width = 2, .channels = 3, .outputs = 3}),
      "my.textproto: no layer has anything to train");
}

TEST(LayerFileTest, TooManyLayersAreRefused) {
  std::string text;
  for (int l = 0; l <= kLayerCountMax; ++l) absl::StrAppend(&text, "layer { name: \"r", l, "\" relu {} }\n");
  EXPECT_THAT(ErrorOf(text), AllOf(StartsWith("my.textproto:4097:"), HasSubstr("at most 4096 are allowed")));
}

TEST(LayerFileTest, LongNamesAreRefused) {
  const auto named = [](int64_t bytes) {
    return absl::StrCat("layer { name: \"", std::string(bytes, 'n'), "\" dense { units: 10 } }");
  };
  EXPECT_TRUE(LayerFile::Parse(named(kLayerNameBytesMax), "").ok());
  EXPECT_THAT(ErrorOf(named(kLayerNameBytesMax + 1)), HasSubstr("the name has 256 bytes, at most 255 are allowed"));
}

TEST(LayerFileTest, ASampleHasALimit) {
  const std::string deep =
      "layer { name: \"c\" conv2d { out_channels: 1048576 kernel: 1 } } layer { name: \"g\" global_average_pool {} }\n"
      "layer { name: \"fc\" dense { units: 10 } }";
  const auto shape = [](int64_t width) {
    return NetworkGraph::DataShape{
        .height = kSampleElementsMax / kLayerWidthMax / 64, .width = width, .channels = 1, .outputs = 10};
  };
  EXPECT_TRUE(NetworkGraph::Create(*LayerFile::Parse(deep, ""), shape(64)).ok());
  EXPECT_THAT(ErrorOf(deep, shape(65)), HasSubstr("at most 2147483648 are allowed"));
}

TEST(LayerFileTest, TensorTooLargeIsRefused) {
  EXPECT_THAT(ErrorOf("layer { name: \"a\" dense { units: 1048576 } } layer { name: \"b\" dense { units: 1048576 } }\n"
                      "layer { name: \"fc\" dense { units: 10 } }"),
              HasSubstr("b.weight"));
}

TEST(NetworkGraphTest, DenseFlattensByItself) {
  const std::string conv = "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 } }\n";
  const std::string dense = "layer { name: \"fc\" dense { units: 10 } }";
  const NetworkGraph implicit = GraphOf(LayerFile::Parse(conv + dense, "a"));
  const NetworkGraph written = GraphOf(LayerFile::Parse(conv + "layer { name: \"f\" flatten {} }\n" + dense, "b"));
  EXPECT_EQ(implicit.layout().hash(), written.layout().hash());
}

TEST(NetworkGraphTest, StrideRoundsDown) {
  const NetworkGraph graph = GraphOf(LayerFile::Parse(
      "layer { name: \"c\" conv2d { out_channels: 2 kernel: 5 stride: 3 padding: 1 } }\n"
      "layer { name: \"p\" max_pool { kernel: 3 stride: 2 padding: 1 } }\nlayer { name: \"fc\" dense { units: 10 } }",
      "a"));
  EXPECT_EQ(ToString(graph.layers()[0].out), "9 x 9 x 2");
  EXPECT_EQ(ToString(graph.layers()[1].out), "5 x 5 x 2");
}

}  // namespace
}  // namespace starring
