"""Layer files without protobuf: what the worker reads is read alike, and what it refuses is refused in its words.

Needs no PyTorch. The refusals are those of tests/worker/model/layer_file_test.cc, which this test reads.
"""

import os
import random
import re
import tempfile
import unittest

from starring import layer_file, layer_graph

MNIST = layer_graph.Shape(28, 28, 1)
CIFAR = layer_graph.Shape(32, 32, 3)
PROTO = "proto/starring/v1/layer_file.proto"
CASES = "tests/worker/model/layer_file_test.cc"
LIMITS = "common/base/limits.h"
PARAMETERS = {"logreg": 7850, "mlp": 1863690, "lenet5": 61706, "mnist_cnn": 1199882, "resnet20": 272474,
              "resnet18": 11173962, "mobilenet_v2": 2236682, "tabular_mlp": 235530}
EVERYTHING = """# Every kind of layer, and every field.
name: 'every\\tthing "here"',
layer { name: "a" conv2d { out_channels: 4, kernel: 0x3; stride: 02 padding: 1 relu: t no_bias: True } }
layer <name: "b" batch_norm: <relu: 1 epsilon: 1e-3f momentum: .25>>
layer: [ { name: "c" max_pool { kernel: 3 stride: 2 padding: 1 } }, { name: "d" dropout { rate: 0.7 } } ]
layer { name: "e" input: ["c"] relu {} }
layer { name: "f" input: "d" input: "e" add { relu: false } }
layer {
\tname: "g"
\t"." "h" flatten {}
}
layer { name: "i" dense { units: 10 relu: false no_bias: false } }
loss { softmax { label_smoothing: 0.3 } }
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def parse(text):
    return layer_file.parse(text if isinstance(text, bytes) else text.encode(), "my.textproto")


def parameter_count(graph):
    count = 0
    for layer in graph.layers:
        size = 1
        for one in layer.weight_shape:
            size *= one
        count += (size if layer.weight_shape else 0) + (layer.weight_shape[0] if layer.has_bias else 0)
    return count


def strings_of(source):
    """The value of C++ string literals that follow each other."""
    literals = re.findall(r'"((?:[^"\\]|\\.)*)"', source)
    return "".join(re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), one) for one in literals)


def wrong_files():
    """(name, text, error) of each WrongFile of the C++ test."""
    literals = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
    return [tuple(strings_of(part) for part in match.groups())
            for match in re.finditer(rf"WrongFile\{{\s*{literals},\s*{literals},\s*{literals}\}}", read(CASES))]


class SchemaTest(unittest.TestCase):
    def test_is_the_protos(self):
        schema = {}
        for message, body in re.findall(r"^message (\w+) \{(.*?)\}\n", read(PROTO) + "\n", re.M | re.S):
            schema[message] = {name: (repeated or "") + kind for repeated, kind, name in re.findall(
                r"^ *(repeated )?(\w+) (\w+) = \d+;", re.sub(r"//.*", "", body), re.M)}
        layer = re.search(r"^message Layer \{(.*?)^\}", read(PROTO), re.M | re.S)[1]
        schema["Layer"] = {name: (repeated or "") + kind for repeated, kind, name in re.findall(
            r"^ *(repeated )?(\w+) (\w+) = \d+;", layer, re.M)}
        self.assertEqual(schema, layer_file.SCHEMA)
        self.assertEqual([field for field in schema["Layer"] if field not in ("name", "input")], layer_file.KINDS)

    def test_limits_are_the_workers(self):
        for name, value in layer_file.LIMITS.items():
            text = re.search(rf"constexpr \w+ {name} = (.*?);", read(LIMITS))[1]
            self.assertEqual(eval(re.sub(r"int64_t\{(\d+)\}", r"\1", text)), value, name)


class ReadTest(unittest.TestCase):
    def test_shipped_models(self):
        self.assertEqual(layer_file.shipped_names(), sorted(PARAMETERS))
        for name, count in PARAMETERS.items():
            graph = layer_graph.build(layer_file.load(name), CIFAR if "net" in name and name != "lenet5" else MNIST, 10)
            self.assertEqual(parameter_count(graph), count, name)

    def test_every_way_to_write_it(self):
        file = parse(EVERYTHING)
        self.assertEqual(file.name, 'every\tthing "here"')
        self.assertEqual([(layer.name, layer.kind) for layer in file.layers],
                         [("a", "conv2d"), ("b", "batch_norm"), ("c", "max_pool"), ("d", "dropout"), ("e", "relu"),
                          ("f", "add"), ("g.h", "flatten"), ("i", "dense")])
        self.assertEqual(file.layers[0].settings, {"out_channels": 4, "kernel": 3, "stride": 2, "padding": 1,
                                                   "relu": True, "no_bias": True})
        # Numbers of 32 bits, as the worker has them: the rate decides which values are dropped.
        self.assertEqual(file.layers[3].get("rate"), 11744051 / 2**24)
        self.assertEqual(file.layers[1].get("momentum"), 0.25)
        self.assertEqual((file.loss.kind, file.loss.get("label_smoothing")), ("softmax", 10066330 / 2**25))
        graph = layer_graph.build(file, MNIST, 10)
        self.assertEqual([str(layer.after) for layer in graph.layers],
                         ["14 x 14 x 4", "14 x 14 x 4", "7 x 7 x 4", "7 x 7 x 4", "7 x 7 x 4", "7 x 7 x 4",
                          "196 (flat)", "10 (flat)"])
        self.assertEqual(graph.tensor_names, ["a.weight", "b.weight", "b.bias", "i.weight", "i.bias"])
        self.assertEqual(graph.flattened, {"i.weight": (4, 7, 7)})
        self.assertEqual(graph.dropout_layers, {"d": 3})

    def test_losses(self):
        for kind in ("mse", "bce"):
            file = parse(f"layer {{ name: \"fc\" dense {{}} }} loss {{ {kind} {{}} }}")
            self.assertEqual(file.loss.kind, kind)
            self.assertTrue(file.text().endswith(f"loss {{ {kind} {{}} }}\n"))
            self.assertEqual(str(layer_graph.build(file, MNIST, 3).layers[-1].after), "3 (flat)")

    def test_text_is_read_as_it_was_written(self):
        for name in [*PARAMETERS, None]:
            file = parse(EVERYTHING) if name is None else layer_file.load(name)
            again = parse(file.text("A comment.\n\nIn two lines."))
            self.assertIn("# A comment.\n# In two lines.\n", file.text("A comment.\n\nIn two lines."))
            self.assertEqual(again.name, file.name)
            self.assertEqual((again.loss.kind, again.loss.get("label_smoothing")),
                             (file.loss.kind, file.loss.get("label_smoothing")))
            self.assertEqual(again.text(), file.text())
            self.assertEqual([(layer.name, layer.kind) for layer in again.layers],
                             [(layer.name, layer.kind) for layer in file.layers])
            for layer, twin in zip(file.layers, again.layers):
                for field in layer_file.SCHEMA[layer_file.SCHEMA["Layer"][layer.kind]]:
                    self.assertEqual(layer.get(field), twin.get(field))
            self.assertTrue(all(len(line) <= 120 for line in file.text().split("\n")))
        # As people have written it, but for comments and empty lines.
        shipped = re.sub(r"^(#.*)?\n", "", read("worker/model/models/resnet20.textproto"), flags=re.M)
        self.assertEqual(re.sub(r"^(#.*)?\n", "", layer_file.load("resnet20").text(), flags=re.M), shipped)


class RefusalTest(unittest.TestCase):
    def refusal(self, text, shape=MNIST, classes=10):
        with self.assertRaises(layer_file.LayerFileError) as refused:
            layer_graph.build(parse(text), shape, classes)
        return str(refused.exception)

    def test_in_the_workers_words(self):
        cases = wrong_files()
        self.assertGreater(len(cases), 25)
        for name, text, error in cases:
            with self.subTest(name):
                self.assertEqual(self.refusal(text), error)

    def test_a_concat_has_64_inputs_at_most(self):
        text = ("layer {{ name: \"r\" relu {{}} }}\nlayer {{ name: \"j\" {}concat {{}} }}\n"
                "layer {{ name: \"fc\" dense {{}} }}")
        parse(text.format("input: \"r\" " * 64))
        self.assertEqual(self.refusal(text.format("input: \"r\" " * 65)),
                         "my.textproto:2:19: layer j: has 65 inputs, concat takes at most 64: join some of them before")

    def test_a_long_function_is_shortened(self):
        self.assertEqual(self.refusal(f"layer {{ name: \"a\" activation {{ function: \"\\n{1000 * 'x'}\" }} }}"),
                         f"my.textproto:1:32: layer a: function is \"?{31 * 'x'}...\", it must be relu6, sigmoid, "
                         "tanh, gelu, gelu_tanh, silu or leaky_relu")

    def test_text_that_is_none(self):
        for text, error in (
                ("name: \"x\"\nlayer { name: \"fc\"\n  dense { unit: 10 } }",
                 "3:11: Dense has no field \"unit\", its fields are: units, relu, no_bias, activation"),
                ("layer { name: \"fc\" dense { units: ten } }", "1:35: expected a whole number, found \"ten\""),
                ("layer {\n", "2:1: expected a field of Layer or \"}\", found the end of the file"),
                ("layer { name: \"fc\" dense { units: 10 } relu {} }",
                 "1:40: Layer has a \"relu\" besides its \"dense\": it can be one of them"),
                ("layer { name: \"fc\" name: \"fc\" }", "1:20: Layer has a second \"name\": leave out one of the two"),
                ("", "1:1: there is no layer: write layer { name: \"fc1\" dense {} }"),
                (b"\0\xff\x01", "1:1: the byte 0x00, which no text has"),
                (b"# \xff is well in a comment\n\xff", "2:1: the byte 0xff, which no text has"),
                (b"name: \"\xff\"", "1:7: a string that is not UTF-8"),
                ("name: \"x", "1:7: a string that does not end in its line"),
                ("name: \"\\q\"", "1:7: a string with the unknown escape \\q"),
                ("name: x", "1:7: expected a string in quotes, found \"x\""),
                ("name \"x\"", "1:6: expected \":\" after name, found \"\"x\"\""),
                ("layer 7", "1:7: expected \"{\", found \"7\""),
                ("}", "1:1: expected a field of ModelDefinition, found \"}\""),
                ("\tlayer { name: \"a\" dense { units: 2147483648 } }",
                 "1:42: 2147483648 is out of range: a number of 32 bits is expected"),
                ("layer { dense { units: 1.0 } }", "1:24: expected a whole number, found \"1.0\""),
                ("layer { dense { units: 10relu: true } }", "1:24: a number that goes on as \"10relu:\""),
                ("layer { dense { relu: yes } }", "1:23: expected true or false, found \"yes\""),
                ("layer { dropout { rate: 0x1 } }", "1:25: expected a number, found \"0x1\""),
                ("layer { input: [\"a\" \"b\", 7] }", "1:26: expected a string in quotes, found \"7\""),
                ("layer { input: [\"a\" 7] }", "1:21: expected \",\" or \"]\", found \"7\"")):
            with self.subTest(text):
                self.assertEqual(self.refusal(text), "my.textproto:" + error)

    def test_damaged_text_is_refused_with_a_place(self):
        generator = random.Random(11)
        refused = 0
        for _ in range(1500):
            content = bytearray(EVERYTHING.encode())
            for _ in range(generator.randint(1, 3)):
                place = generator.randrange(len(content))
                part = bytes(generator.choices(b"\"'{}[]<>:;,.-0x9eEa \n\t\\\0\xff#", k=generator.randint(0, 2)))
                content[place:place + generator.randint(0, 2)] = part
            try:
                layer_graph.build(parse(bytes(content)), MNIST, 10)
            except layer_file.LayerFileError as error:
                refused += 1
                self.assertRegex(str(error), r"^my\.textproto(:\d+:\d+)?: ", bytes(content))
        self.assertGreater(refused, 500)

    def test_losses_of_numbers_and_bits(self):
        layer = "layer { name: \"fc\" dense { units: 10 } }\n"
        self.assertEqual(self.refusal(layer + "loss { mse {} }", classes=3),
                         "my.textproto:1:28: layer fc: is the last layer and has 10 outputs, the data set has 3 "
                         "targets a sample: both must be equal, so leave `units` out")
        self.assertEqual(self.refusal(layer + "loss { bce { label_smoothing: 0.1 } }"), "my.textproto:2:14: BceLoss "
                         "has no field \"label_smoothing\", its fields are: none")
        self.assertEqual(self.refusal(layer + "loss { mse {} bce {} }"),
                         "my.textproto:2:15: Loss has a \"bce\" besides its \"mse\": it can be one of them")

    def test_what_needs_other_shapes(self):
        self.assertEqual(self.refusal("layer { name: \"g\" global_average_pool {} }", layer_graph.Shape(2, 2, 3), 3),
                         "my.textproto: no layer has anything to train")
        self.assertIn("at most 4096 are allowed",
                      self.refusal("".join(f"layer {{ name: \"r{i}\" relu {{}} }}\n" for i in range(4097))))
        self.assertIn("the name has 256 bytes, at most 255 are allowed",
                      self.refusal(f"layer {{ name: \"{256 * 'n'}\" dense {{ units: 10 }} }}"))
        self.assertIn("b.weight", self.refusal("layer { name: \"a\" dense { units: 1048576 } }\n"
                                               "layer { name: \"b\" dense { units: 1048576 } }\n"
                                               "layer { name: \"fc\" dense { units: 10 } }"))
        deep = ("layer { name: \"c\" conv2d { out_channels: 1048576 kernel: 1 } }\n"
                "layer { name: \"g\" global_average_pool {} } layer { name: \"fc\" dense { units: 10 } }")
        self.assertIn("at most 2147483648 are allowed", self.refusal(deep, layer_graph.Shape(32, 65, 1)))
        self.assertIn("every number must be 1 or more", self.refusal(deep, layer_graph.Shape(0, 1, 1)))

    def test_files(self):
        with self.assertRaisesRegex(layer_file.LayerFileError,
                                    "use one of lenet5, logreg, mlp, mnist_cnn, mobilenet_v2, resnet18, resnet20"):
            layer_file.load("lenet6")
        with self.assertRaisesRegex(layer_file.LayerFileError, "/no/such.textproto: No such file or directory"):
            layer_file.load("/no/such.textproto")
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(layer_file.LayerFileError, "Is a directory"):
                layer_file.load(folder)
            path = os.path.join(folder, "huge.textproto")
            with open(path, "w", encoding="utf-8") as file:
                file.write("#" * ((1 << 20) + 1))
            with self.assertRaisesRegex(layer_file.LayerFileError, "longer than 1048576 bytes"):
                layer_file.load(path)
            # A long line takes a time in proportion.
            with open(path, "w", encoding="utf-8") as file:
                file.write("a " * (1 << 19))
            with self.assertRaisesRegex(layer_file.LayerFileError, ":1:1: ModelDefinition has no field \"a\""):
                layer_file.load(path)


if __name__ == "__main__":
    unittest.main()
