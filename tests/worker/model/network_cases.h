// Networks of odd shapes that reach every rule of worker/model/network_program.h: chains, and residual joins.
#ifndef STARRING_TESTS_WORKER_MODEL_NETWORK_CASES_H_
#define STARRING_TESTS_WORKER_MODEL_NETWORK_CASES_H_

#include <cstdint>
#include <ostream>

namespace starring {

struct NetworkCase {
  const char* name;
  const char* layers;
  int64_t height, width, channels, classes, batch;
};
inline void PrintTo(const NetworkCase& c, std::ostream* out) { *out << c.name; }

inline constexpr NetworkCase kChainCases[] = {
    NetworkCase{"Dense", "layer { name: \"fc\" dense { units: 3 } }", 1, 5, 1, 3, 4},
    NetworkCase{"DenseWithSmoothedLabels",
                "layer { name: \"fc\" dense { units: 3 } } loss { softmax { label_smoothing: 0.3 } }", 1, 5, 1, 3, 4},
    NetworkCase{
        "NumbersAfterDense",
        "layer { name: \"a\" dense { units: 4 relu: true } } layer { name: \"fc\" dense { units: 3 } } loss { mse {} }",
        1, 5, 1, 3, 4},
    NetworkCase{"NumbersAfterSigmoid",
                "layer { name: \"fc\" dense { units: 3 activation: \"sigmoid\" } } loss { mse {} }", 1, 5, 1, 3, 4},
    NetworkCase{"BitsAfterDense", "layer { name: \"fc\" dense { units: 2 } } loss { bce {} }", 2, 2, 1, 2, 5},
    NetworkCase{"DenseReluLast", "layer { name: \"fc\" dense { units: 3 relu: true } }", 3, 1, 2, 3, 7},
    NetworkCase{
        "DenseWithoutBias",
        "layer { name: \"a\" dense { units: 5 relu: true no_bias: true } } layer { name: \"fc\" dense { units: 3 "
        "} }",
        2, 3, 1, 3, 5},
    NetworkCase{"ConvPoolDense",
                "layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 padding: 1 relu: true } }"
                "layer { name: \"p\" max_pool { kernel: 2 } } layer { name: \"fc\" dense { units: 3 } }",
                7, 5, 2, 3, 3},
    NetworkCase{
        "ConvStrideFlatten",
        "layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 stride: 2 no_bias: true } }"
        "layer { name: \"r\" relu {} } layer { name: \"f\" flatten {} } layer { name: \"fc\" dense { units: 4 } }",
        8, 7, 3, 4, 3},
    NetworkCase{"ConvConv",
                "layer { name: \"c\" conv2d { out_channels: 2 kernel: 2 padding: 2 stride: 3 relu: true } }"
                "layer { name: \"d\" conv2d { out_channels: 3 kernel: 1 } } layer { name: \"fc\" dense { units: 2 } }",
                5, 5, 1, 2, 4},
    NetworkCase{
        "OverlappingPool",
        "layer { name: \"c\" conv2d { out_channels: 2 kernel: 1 } }"
        "layer { name: \"p\" max_pool { kernel: 3 stride: 2 padding: 1 } } layer { name: \"fc\" dense { units: 2 "
        "} }",
        5, 7, 2, 2, 3},
    NetworkCase{
        "AverageAndNorm",
        "layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 } } layer { name: \"n\" batch_norm { relu: true } }"
        "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 3 } }",
        5, 6, 2, 3, 4},
    NetworkCase{"NormFirst",
                "layer { name: \"n\" batch_norm {} } layer { name: \"c\" conv2d { out_channels: 2 kernel: 3 } }"
                "layer { name: \"fc\" dense { units: 3 } }",
                4, 4, 2, 3, 5},
    NetworkCase{"NormOfUnits",
                "layer { name: \"a\" dense { units: 5 no_bias: true } } layer { name: \"n\" batch_norm {} }"
                "layer { name: \"r\" relu {} } layer { name: \"fc\" dense { units: 3 } }",
                2, 2, 1, 3, 6},
    NetworkCase{"DropoutInPlace",
                "layer { name: \"a\" dense { units: 7 relu: true } } layer { name: \"d\" dropout { rate: 0.4 } }"
                "layer { name: \"e\" dropout { rate: 0.25 } } layer { name: \"fc\" dense { units: 3 } }",
                3, 3, 1, 3, 6},
    NetworkCase{"DropoutOfTheImage",
                "layer { name: \"d\" dropout { rate: 0.3 } } layer { name: \"r\" relu {} }"
                "layer { name: \"fc\" dense { units: 3 } }",
                3, 3, 1, 3, 5},
    NetworkCase{"ActivationFields",
                "layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 activation: \"silu\" } }"
                "layer { name: \"d\" dense { units: 6 activation: \"tanh\" } }"
                "layer { name: \"e\" dense { units: 5 activation: \"leaky_relu\" } } layer { name: \"fc\" dense {} }",
                5, 4, 2, 3, 4},
    NetworkCase{
        "ActivationsInARow",
        "layer { name: \"a\" dense { units: 6 } } layer { name: \"b\" activation { function: \"gelu\" } }"
        "layer { name: \"c\" activation { function: \"gelu_tanh\" } } layer { name: \"s\" scale { factor: -2.5 } }"
        "layer { name: \"d\" activation { function: \"sigmoid\" } } layer { name: \"r\" relu {} }"
        "layer { name: \"u\" dropout { rate: 0.2 } } layer { name: \"e\" activation { function: \"tanh\" } }"
        "layer { name: \"t\" scale { factor: 3 } } layer { name: \"fc\" dense {} }",
        3, 3, 1, 3, 6},
    // Each would have to keep what the next one overwrites in place.
    NetworkCase{
        "ActivationsThatReadTheirOutputs",
        "layer { name: \"a\" dense { units: 7 } } layer { name: \"b\" activation { function: \"tanh\" } }"
        "layer { name: \"f\" flatten {} } layer { name: \"r\" relu {} }"
        "layer { name: \"c\" activation { function: \"leaky_relu\" slope: 0.3 } } layer { name: \"s\" scale { "
        "factor: 9 } }"
        "layer { name: \"d\" activation { function: \"relu6\" } } layer { name: \"u\" dropout { rate: 0.2 } }"
        "layer { name: \"fc\" dense { units: 3 } } layer { name: \"last\" activation { function: \"sigmoid\" } }",
        3, 3, 1, 3, 6},
    NetworkCase{"DepthwiseAndAverage",
                "layer { name: \"d\" conv2d { kernel: 3 padding: 1 depthwise: true relu: true } }"
                "layer { name: \"p\" average_pool { kernel: 2 stride: 1 padding: 1 } }"
                "layer { name: \"e\" conv2d { out_channels: 2 kernel: 2 stride: 2 depthwise: true no_bias: true "
                "activation: \"relu6\" } }"
                "layer { name: \"q\" average_pool { kernel: 2 } } layer { name: \"fc\" dense {} }",
                7, 6, 2, 3, 4},
    NetworkCase{
        "GroupNorms",
        "layer { name: \"m\" group_norm { groups: 2 } } layer { name: \"c\" conv2d { out_channels: 6 kernel: 3 } }"
        "layer { name: \"n\" group_norm { groups: 3 epsilon: 0.01 } } layer { name: \"d\" dense { units: 8 } }"
        "layer { name: \"o\" group_norm { groups: 2 } } layer { name: \"fc\" dense {} }",
        4, 5, 2, 3, 4},
    NetworkCase{"LayerNorms",
                "layer { name: \"m\" layer_norm {} } layer { name: \"c\" conv2d { out_channels: 3 kernel: 3 } }"
                "layer { name: \"n\" layer_norm { epsilon: 0.01 } } layer { name: \"d\" dense { units: 8 } }"
                "layer { name: \"o\" layer_norm {} } layer { name: \"fc\" dense {} }",
                4, 5, 2, 3, 4},
    // The loss may not overwrite logits that the ReLU's mask is read from.
    NetworkCase{"DropoutOfAReluLast",
                "layer { name: \"fc\" dense { units: 3 relu: true } } layer { name: \"d\" dropout { rate: 0.3 } }", 2,
                3, 1, 3, 6},
    NetworkCase{
        "NothingToTrainBelow",
        "layer { name: \"p\" max_pool { kernel: 2 } } layer { name: \"f\" flatten {} } layer { name: \"r\" relu "
        "{} }"
        "layer { name: \"fc\" dense { units: 3 } }",
        4, 4, 3, 3, 5}};

#define CONV "conv2d { out_channels: 2 kernel: 3 padding: 1 no_bias: true }"
#define END "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 3 } }"

inline constexpr NetworkCase kJoinCases[] = {
    NetworkCase{"ResidualBlock",
                "layer { name: \"c0\" " CONV " } layer { name: \"n0\" batch_norm { relu: true } }"
                "layer { name: \"c1\" " CONV " } layer { name: \"n1\" batch_norm { relu: true } }"
                "layer { name: \"c2\" " CONV " } layer { name: \"n2\" batch_norm {} }"
                "layer { name: \"a\" input: \"n2\" input: \"n0\" add { relu: true } }" END,
                4, 5, 2, 3, 3},
    NetworkCase{"ProjectedBlock",
                "layer { name: \"c0\" " CONV " } layer { name: \"n0\" batch_norm { relu: true } }"
                "layer { name: \"c1\" conv2d { out_channels: 3 kernel: 3 stride: 2 padding: 1 } }"
                "layer { name: \"n1\" batch_norm {} }"
                "layer { name: \"s0\" input: \"n0\" conv2d { out_channels: 3 kernel: 1 stride: 2 no_bias: true } }"
                "layer { name: \"s1\" batch_norm {} }"
                "layer { name: \"a\" input: \"n1\" input: \"s1\" add { relu: true } }" END,
                5, 4, 2, 3, 4},
    NetworkCase{"AddOfTheSame",
                "layer { name: \"c\" " CONV " } layer { name: \"a\" input: \"c\" input: \"c\" add {} }" END, 4, 4, 2, 3,
                3},
    // Two activations share the gradient of the sum, and would write to it in place.
    NetworkCase{"AddOfTwoActivations",
                "layer { name: \"c\" input: \"input\" conv2d { out_channels: 2 kernel: 1 activation: \"sigmoid\" } }"
                "layer { name: \"d\" input: \"input\" conv2d { out_channels: 2 kernel: 1 activation: \"tanh\" } }"
                "layer { name: \"a\" input: \"c\" input: \"d\" add {} }" END,
                3, 4, 2, 3, 4},
    NetworkCase{"ConcatOfThree",
                "layer { name: \"c\" " CONV " } layer { name: \"d\" conv2d { out_channels: 3 kernel: 1 relu: true } }"
                "layer { name: \"e\" input: \"c\" input: \"input\" input: \"d\" concat {} }"
                "layer { name: \"f\" input: \"e\" input: \"e\" concat {} }"
                "layer { name: \"r\" relu {} }" END,
                3, 4, 2, 3, 4},
    NetworkCase{
        "ConcatOfUnits",
        "layer { name: \"a\" dense { units: 4 relu: true } } layer { name: \"b\" dense { units: 3 activation: "
        "\"sigmoid\" } } layer { name: \"j\" input: \"a\" input: \"b\" concat {} } layer { name: \"fc\" dense {} }",
        2, 3, 1, 3, 4},
    // Both readers of the shared gradient would mask it in place.
    NetworkCase{"AddOfTwoFusedRelus",
                "layer { name: \"c\" input: \"input\" conv2d { out_channels: 2 kernel: 1 relu: true } }"
                "layer { name: \"d\" input: \"input\" conv2d { out_channels: 2 kernel: 1 relu: true } }"
                "layer { name: \"a\" input: \"c\" input: \"d\" add {} }" END,
                3, 4, 2, 3, 4},
    NetworkCase{"AddOfReluAndDropout",
                "layer { name: \"c\" " CONV " } layer { name: \"r\" input: \"c\" relu {} }"
                "layer { name: \"d\" input: \"c\" dropout { rate: 0.3 } }"
                "layer { name: \"a\" input: \"r\" input: \"d\" add {} }" END,
                4, 4, 2, 3, 4},
    NetworkCase{"AddOfTheImage",
                "layer { name: \"c\" " CONV
                " } layer { name: \"a\" input: \"input\" input: \"c\" add { relu: true } }" END,
                4, 4, 2, 3, 3},
    NetworkCase{
        "AddFollowsAdd",
        "layer { name: \"c\" " CONV " } layer { name: \"d\" " CONV " } layer { name: \"e\" " CONV " }"
        "layer { name: \"a\" input: \"c\" input: \"e\" add {} } layer { name: \"b\" input: \"a\" input: \"d\" add "
        "{} }"
        "layer { name: \"f\" input: \"b\" input: \"c\" add { relu: true } }" END,
        4, 3, 2, 3, 3},
    // The flattened output and its input are one storage: no layer may overwrite it.
    NetworkCase{
        "FlattenShared",
        "layer { name: \"c\" conv2d { out_channels: 1 kernel: 1 } } layer { name: \"f\" input: \"c\" flatten {} }"
        "layer { name: \"r\" input: \"f\" relu {} } layer { name: \"u\" input: \"r\" dense { units: 3 } }"
        "layer { name: \"v\" input: \"c\" dense { units: 3 } } layer { name: \"a\" input: \"u\" input: \"v\" add "
        "{} }",
        2, 3, 2, 3, 5},
    // The gradient of the first join comes from a convolution and from the second join.
    NetworkCase{"JoinBehindJoin",
                "layer { name: \"c\" " CONV " } layer { name: \"d\" input: \"c\" " CONV " }"
                "layer { name: \"a\" input: \"c\" input: \"d\" add { relu: true } }"
                "layer { name: \"e\" input: \"a\" " CONV " }"
                "layer { name: \"b\" input: \"a\" input: \"e\" add { relu: true } }" END,
                4, 3, 2, 3, 4},
    NetworkCase{"ReluOfThreeReaders",
                "layer { name: \"c\" " CONV " } layer { name: \"r\" relu {} } layer { name: \"d\" input: \"r\" " CONV
                " }"
                "layer { name: \"a\" input: \"r\" input: \"d\" add {} }"
                "layer { name: \"b\" input: \"a\" input: \"r\" add {} }" END,
                3, 4, 2, 3, 4},
    NetworkCase{
        "ThreeReaders",
        "layer { name: \"a\" dense { units: 3 relu: true } } layer { name: \"b\" input: \"a\" dense { units: 3 } }"
        "layer { name: \"c\" input: \"a\" dense { units: 3 relu: true } }"
        "layer { name: \"d\" input: \"a\" input: \"b\" add {} } layer { name: \"e\" input: \"d\" input: \"c\" add "
        "{} }",
        2, 2, 1, 3, 5}};

#undef CONV
#undef END

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_MODEL_NETWORK_CASES_H_
