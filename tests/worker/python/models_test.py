"""Models both ways: layer files as modules of PyTorch, and modules as layer files."""

import contextlib
import copy
import io
import json
import os
import pickle
import sys
import tempfile
import unittest
import zlib

try:
    import torch
except ImportError:
    print("SKIPPED: this python3 has no torch, so starring.models was not tested", file=sys.stderr)
    sys.exit(0)

from starring import _layer_modules, export, layer_file, models, weights
from torch import nn
from torch.nn import functional as F

IMAGES = {"logreg": (1, 28, 28), "mlp": (1, 28, 28), "lenet5": (1, 28, 28), "mnist_cnn": (1, 28, 28),
          "resnet20": (3, 32, 32), "resnet18": (3, 32, 32), "mobilenet_v2": (3, 32, 32), "tabular_mlp": (14, 1, 1)}
EVERYTHING = """name: "everything"
layer { name: "stem.conv" conv2d { out_channels: 4 kernel: 3 stride: 2 padding: 1 no_bias: true } }
layer { name: "stem.norm" batch_norm { relu: true epsilon: 0.001 momentum: 0.25 } }
layer { name: "each" conv2d { kernel: 3 padding: 1 depthwise: true } }
layer { name: "mean" average_pool { kernel: 3 stride: 1 padding: 1 } }
layer { name: "joined" input: "mean" input: "each" concat {} }
layer { name: "narrow" conv2d { out_channels: 4 kernel: 1 } }
layer { name: "grouped" group_norm { groups: 2 epsilon: 0.25 } }
layer { name: "layered" layer_norm { epsilon: 0.5 } }
layer { name: "stem.leaky" activation { function: "leaky_relu" slope: 0.25 } }
layer { name: "pool" max_pool { kernel: 3 stride: 2 padding: 1 } }
layer { name: "stem" conv2d { out_channels: 4 kernel: 1 } }
layer { name: "drop" dropout { rate: 0.3 } }
layer { name: "sum" input: "drop" input: "pool" add { relu: true } }
layer { name: "flat" flatten {} }
layer { name: "twice" input: "flat" input: "flat" add {} }
layer { name: "halves" scale { factor: 0.5 } }
layer { name: "fc-1" dense { units: 7 activation: "gelu_tanh" } }
layer { name: "smooth" activation { function: "silu" } }
layer { name: "norm" batch_norm {} }
layer { name: "last" dense { units: 10 no_bias: true } }
loss { softmax { label_smoothing: 0.2 } }
"""


def sample(image, count=3):
    return torch.randn((count, *image), generator=torch.Generator().manual_seed(7))


def same_weights(module, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())


def randomize(module):
    """Weights and running statistics that no module begins with."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + 0.1)
    return module


class BasicBlock(nn.Module):
    """As torchvision writes it: one ReLU for all, in place."""

    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, (3, 3), padding="same", bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None if stride == 1 else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Residual(nn.Module):
    """Average pooling, and a flatten by hand."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 16, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.layer1(F.relu(self.conv1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Functional(nn.Module):
    """Every function and method with a counterpart."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 4, 3)
        self.b = nn.Conv2d(4, 4, 3, padding="valid")
        self.fc1 = nn.Linear(4 * 12 * 12, 20)
        self.same = nn.Identity()
        self.fc2 = nn.Linear(20, 10)

    def forward(self, x):
        x = torch.relu(self.a(x))
        y = F.max_pool2d(self.b(x).relu_(), 2, stride=2)
        z = F.dropout(torch.add(y, F.relu(y)), 0.25, training=self.training)
        z = z.contiguous().view(z.size(0), -1)
        z = self.same(F.dropout(self.fc1(z), training=False))
        return self.fc2(F.relu(z, inplace=True))


class FromLayerFileTest(unittest.TestCase):
    def test_names_and_shapes_are_the_workers(self):
        model = models.from_layer_file("lenet5")
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self.assertEqual(shapes, {"conv1.weight": (6, 1, 5, 5), "conv1.bias": (6,), "conv2.weight": (16, 6, 5, 5),
                                  "conv2.bias": (16,), "fc1.weight": (120, 400), "fc1.bias": (120,),
                                  "fc2.weight": (84, 120), "fc2.bias": (84,), "fc3.weight": (10, 84),
                                  "fc3.bias": (10,)})
        resnet = models.from_layer_file("resnet20", image=(3, 32, 32), classes=10)
        self.assertIn("layer2.0.downsample.1.running_mean", resnet.state_dict())
        self.assertEqual(resnet.layer_graph.tensor_names, [name for name, _ in resnet.named_parameters()])
        self.assertEqual(models.from_layer_file("lenet5", classes=7).fc3.out_features, 7)
        with self.layer_file("layer { name: \"fc\" dense { units: 10 } }") as path, \
                self.assertRaisesRegex(models.LayerFileError, ":1:28: layer fc: .* 10 outputs.* 7 classes"):
            models.from_layer_file(path, classes=7)

    def test_computes_what_the_file_says(self):
        with self.layer_file(EVERYTHING) as path:
            model = randomize(models.from_layer_file(path, image=(2, 13, 9)))
        modules = dict(model.named_modules())
        x = sample((2, 13, 9))
        model.eval()
        with torch.no_grad():
            y = F.relu(modules["stem.norm"](F.conv2d(x, modules["stem.conv"].weight, None, 2, 1)))
            y = F.conv2d(y, model.each.weight, model.each.bias, 1, 1, groups=4)
            y = model.narrow(torch.cat([F.avg_pool2d(y, 3, 1, 1), y], dim=1))
            y = F.group_norm(y, 2, model.grouped.weight, model.grouped.bias, 0.25)
            y = F.layer_norm(y, y.shape[1:], model.layered.weight, model.layered.bias, 0.5)
            pool = F.max_pool2d(F.leaky_relu(y, 0.25), 3, 2, 1)
            y = F.relu(F.conv2d(pool, model.stem.weight, model.stem.bias) + pool)
            y = torch.flatten(y, 1)
            y = F.gelu(modules["fc-1"]((y + y) * 0.5), approximate="tanh")
            y = modules["norm"](F.silu(y))
            self.assertTrue(torch.equal(model(x), F.linear(y, model.last.weight)))
        self.assertEqual((modules["stem.norm"].momentum, modules["norm"].momentum, modules["norm"].eps),
                         (0.25, 0.1, 1e-5))
        self.assertAlmostEqual(modules["stem.norm"].eps, 1e-3)
        self.assertIsInstance(modules["norm"], nn.BatchNorm1d)
        model.train()
        self.assertFalse(torch.equal(model(x), model(x)))

    def test_is_a_module_like_any_other(self):
        model = models.from_layer_file("resnet20", image=(3, 32, 32)).eval()
        x = sample((3, 32, 32))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.fx.symbolic_trace(model)):
            self.assertTrue(torch.equal(model(x), other(x)))
        # A module that takes a layer's place is the one that runs.
        self.assertFalse(torch.equal(model(x), self.with_other_fc(copy.deepcopy(model))(x)))
        model.double()(x.double()).sum().backward()
        self.assertTrue(all(parameter.grad is not None for parameter in model.parameters()))

    def with_other_fc(self, model):
        model.fc = nn.Linear(64, 10)
        return model

    def test_weights_of_torch_save(self):
        model = randomize(models.from_layer_file("resnet20", image=(3, 32, 32)))
        with tempfile.TemporaryDirectory() as folder:
            source, out = f"{folder}/in.pt", f"{folder}/out.safetensors"
            state = model.state_dict()
            wrapped = {"module." + name: tensor for name, tensor in state.items()}
            for content in (state, {"epoch": 3, "state_dict": wrapped}, {"model": state, "optimizer": {}}):
                torch.save(content, source)
                self.assertEqual(weights.main([source, out]), 0)
                again = models.from_layer_file("resnet20", (3, 32, 32), weights=out)
                self.assertTrue(same_weights(model, again))
            for content, error in ((3, "has a int, expected a state_dict"),
                                   ({"epoch": 3}, "has no tensors, but epoch")):
                torch.save(content, source)
                with self.assertRaisesRegex(weights.WeightsError, error):
                    weights.from_torch(source)
            for content in (b"", b"PK", b"nothing at all"):
                with open(source, "wb") as file:
                    file.write(content)
                with self.assertRaisesRegex(weights.WeightsError, "in.pt: cannot be read"):
                    weights.from_torch(source)

    def test_weights_of_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            model = randomize(models.from_layer_file("resnet20", image=(3, 32, 32)))
            weights.save(f"{folder}/model.safetensors", model.state_dict())
            again = models.from_layer_file("resnet20", (3, 32, 32), weights=f"{folder}/model.safetensors")
            self.assertTrue(same_weights(model, again))
            with self.assertRaisesRegex(weights.WeightsError, "does not fit lenet5"):
                models.from_layer_file("lenet5", weights=f"{folder}/model.safetensors")

    def test_a_name_that_no_module_can_have_is_refused(self):
        for name in ("forward", "a.weight"):
            text = ("layer { name: \"a\" conv2d { out_channels: 2 kernel: 3 } }\n"
                    f"layer {{ name: \"{name}\" relu {{}} }}\nlayer {{ name: \"fc\" dense {{ units: 10 }} }}")
            with self.layer_file(text) as path:
                with self.assertRaisesRegex(models.LayerFileError, f"layer {name}: .*rename the layer"):
                    models.from_layer_file(path)

    @contextlib.contextmanager
    def layer_file(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "own.textproto")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            yield path


class WeightsTest(unittest.TestCase):
    def test_damaged_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "w.safetensors")
            tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(7), "c": torch.empty(0, 4)}
            weights.save(path, tensors)
            with open(path, "rb") as file:
                content = file.read()
            loaded = weights.load(path)
            self.assertEqual(list(loaded), ["a", "b", "c"])
            for name, tensor in tensors.items():
                self.assertTrue(torch.equal(loaded[name], tensor))
                self.assertEqual(loaded[name].dtype, tensor.dtype)
            self.assertEqual((8 + int.from_bytes(content[:8], "little")) % 64, 0)
            for damaged in (b"", content[:7], content[:40], content[:-1], b"\xff" * 8 + content[8:],
                            content.replace(b"F32", b"F16"), content.replace(b"[2,3]", b"[2,4]"),
                            content.replace(b"\"shape\"", b"\"shapf\""), b"\2\0\0\0\0\0\0\0[]"):
                with open(path, "wb") as file:
                    file.write(damaged)
                with self.assertRaisesRegex(weights.WeightsError, "w.safetensors: "):
                    weights.load(path)


SMALL = """layer { name: "conv" conv2d { out_channels: 3 kernel: 2 relu: true } }
layer { name: "norm" batch_norm {} }
layer { name: "fc" dense {} }
"""


class CheckpointTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.facts = {"layer_file": SMALL, "height": 4, "width": 5, "channels": 2, "takes_numbers": False, "outputs": 6,
                      "mean": [0.25, 0.5], "deviation": [0.125, 2], "class_names": list("abcdef")}

    def write(self, step, loss="", **facts):
        place = f"{self.folder.name}/step-{step:09}"
        os.mkdir(place)
        path = f"{self.folder.name}/small.textproto"
        with open(path, "w", encoding="utf-8") as file:
            file.write(SMALL + loss)
        module = randomize(models.from_layer_file(path, image=(2, 4, 5), classes=6)).eval()
        weights.save(f"{place}/model.safetensors", module.state_dict())
        with open(f"{place}/model.safetensors", "rb") as file:
            content = file.read()
        entry = {"name": "model.safetensors", "size_bytes": str(len(content)), "crc32": zlib.crc32(content)}
        with open(f"{place}/manifest.json", "w", encoding="utf-8") as file:
            model = {**self.facts, "layer_file": SMALL + loss, **facts}
            json.dump({"step": step, "version": 2, "files": [entry], "model": model}, file)
        return place, module

    def test_the_model_takes_what_the_data_have(self):
        self.write(9)
        place, module = self.write(100)
        os.mkdir(f"{self.folder.name}/step-000000200")  # without a manifest
        pixels = torch.randint(0, 256, (3, 2, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        mean, deviation = torch.tensor([0.25, 0.5]).view(2, 1, 1), torch.tensor([0.125, 2]).view(2, 1, 1)
        wanted = module((pixels / 255 - mean) / deviation)
        for folder in (self.folder.name, place):
            model = models.from_checkpoint(folder)
            self.assertFalse(model.training)
            self.assertEqual((model.image, model.class_names), ((2, 4, 5), list("abcdef")))
            torch.testing.assert_close(model(pixels), wanted)
            torch.testing.assert_close(model(pixels.float()), wanted)
        with self.assertRaisesRegex(ValueError, r"shape \(2, 5, 4\), the model takes \(2, 4, 5\)"):
            model(pixels.transpose(2, 3))

    def test_numbers_are_not_divided(self):
        place, module = self.write(1, takes_numbers=True, mean=[0, 0], deviation=[1, 1])
        numbers = sample((2, 4, 5))
        torch.testing.assert_close(models.from_checkpoint(place)(numbers), module(numbers))

    def test_the_loss_decides_what_comes_out(self):
        images = sample((2, 4, 5))
        path = f"{self.folder.name}/model.onnx"
        for step, (loss, name) in enumerate((("", "logits"), ("loss { softmax {} }", "logits"),
                                             ("loss { mse {} }", "numbers"), ("loss { bce {} }", "probabilities"))):
            place, module = self.write(step, loss, takes_numbers=True, mean=[0, 0], deviation=[1, 1])
            model = models.from_checkpoint(place)
            wanted = module(images)
            torch.testing.assert_close(model.model(images), wanted)
            torch.testing.assert_close(model(images), 1 / (1 + (-wanted).exp()) if "bce" in loss else wanted)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertEqual(export.main([place, path]), 0)
            self.assertTrue(said.getvalue().endswith(f"images (samples, 2, 4, 5), {name}\n"))
            with open(path, "rb") as file:
                content = file.read()
            self.assertEqual([other for other in ("logits", "numbers", "probabilities") if other.encode() in content],
                             [name])
            self.assertEqual(b"Sigmoid" in content, "bce" in loss)

    def test_damage_is_named(self):
        with self.assertRaisesRegex(models.CheckpointError, "holds no checkpoint: give a run's --checkpoint_dir"):
            models.from_checkpoint(self.folder.name)
        place, _ = self.write(1, outputs=7)
        with self.assertRaisesRegex(weights.WeightsError, "model.safetensors does not fit its layer file"):
            models.from_checkpoint(place)
        for text, expected in (('{"version": 2}', "a version that kept no model"), ("{", "manifest.json is damaged"),
                               ('{"version": 2, "model": {"layer_file": 3}}', "is damaged"),
                               ('{"version": 2, "model": {}}', "damaged: KeyError"), ("[]", "is damaged"),
                               ('{"version": 3}', "has version 3, this package reads up to 2")):
            with open(f"{place}/manifest.json", "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaisesRegex(models.CheckpointError, expected):
                models.from_checkpoint(place)

    def test_a_damaged_one_is_passed_over(self):
        self.write(1)
        place, _ = self.write(2)
        with open(f"{place}/model.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        with self.assertRaisesRegex(models.CheckpointError, "model.safetensors is damaged: it has .* the CRC-32"):
            models.from_checkpoint(place)
        self.assertEqual(models.from_checkpoint(self.folder.name).image, (2, 4, 5))

    def test_onnx(self):
        _, module = self.write(1)
        path = f"{self.folder.name}/model.onnx"
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertEqual(export.main([self.folder.name, path]), 0)
        self.assertIn("images (samples, 2, 4, 5), logits", said.getvalue())
        with open(path, "rb") as file:
            content = file.read()
        self.assertTrue(all(name in content for name in (b"images", b"logits", b"samples")))
        # Batch norm may be folded into what is before it, the last layer stays as it is.
        self.assertIn(module.fc.bias.detach().numpy().tobytes(), content)
        model = models.from_checkpoint(self.folder.name)
        self.assertIn(model.offset.numpy().tobytes(), content)
        self.assertIn(model.scale.numpy().tobytes(), content)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["model.onnx", "small.textproto", "step-000000001"])
        with contextlib.redirect_stderr(said):
            self.assertEqual(export.main([f"{self.folder.name}/nothing", path]), 2)
        self.assertIn("nothing holds no checkpoint", said.getvalue())


class RoundTripTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def round_trip(self, module, image, name="net"):
        """Writes and reads `module`; returns the model and the text of the file."""
        path = os.path.join(self.folder, name + ".textproto")
        before = {key: value.clone() for key, value in module.state_dict().items()}
        modes = [one.training for one in module.modules()]
        where = models.to_layer_file(module, path, image)
        self.assertEqual(where, os.path.join(self.folder, name + ".safetensors"))
        self.assertEqual([one.training for one in module.modules()], modes)
        for key, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, before[key]), key)
        again = models.from_layer_file(path, image, weights=where)
        x = sample(image)
        with torch.no_grad():
            expected = copy.deepcopy(module).eval()(x)
            torch.testing.assert_close(copy.deepcopy(again).eval()(x), expected, rtol=1e-5, atol=1e-5)
        with open(path, encoding="utf-8") as file:
            return again, file.read()

    def kinds(self, text):
        return [(layer.name, layer.kind) for layer in layer_file.parse(text.encode(), "x").layers]

    def test_every_shipped_model(self):
        for name, image in IMAGES.items():
            with self.subTest(name):
                model = models.from_layer_file(name, image)
                if name not in ("resnet18", "mobilenet_v2"):  # positive weights in so many layers would overflow
                    randomize(model)
                again, text = self.round_trip(model, image)
                self.assertEqual(text, layer_file.load(name).text().replace("dense {}", "dense { units: 10 }"))
                self.assertEqual(list(again.state_dict()), list(model.state_dict()))
                self.assertTrue(same_weights(model, again))
                with torch.no_grad():
                    self.assertTrue(torch.equal(again.eval()(sample(image)), model.eval()(sample(image))))
                self.assertEqual(self.round_trip(again, image)[1], text)

    def test_every_kind_of_layer(self):
        path = os.path.join(self.folder, "everything.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(EVERYTHING)
        model = randomize(models.from_layer_file(path, (2, 13, 9)))
        _, text = self.round_trip(model, (2, 13, 9))
        self.assertEqual(text, layer_file.load(path).text())

    def test_a_loss(self):
        path = os.path.join(self.folder, "smooth.textproto")
        module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        models.to_layer_file(module, path, (1, 2, 2), loss=nn.CrossEntropyLoss(label_smoothing=0.1))
        with open(path, encoding="utf-8") as file:
            self.assertTrue(file.read().endswith("loss { softmax { label_smoothing: 0.1 } }\n"))
        logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
        self.assertAlmostEqual(models.loss_from_layer_file(path)(logits, labels).item(),
                               F.cross_entropy(logits, labels, label_smoothing=0.1).item(), places=6)
        self.assertEqual(models.loss_from_layer_file("lenet5", "sum")(logits, labels),
                         F.cross_entropy(logits, labels, reduction="sum"))
        # A module that is made from the file keeps the file's loss, and another loss takes its place.
        model = models.from_layer_file(path, (1, 2, 2))
        models.to_layer_file(model, path, (1, 2, 2))
        self.assertAlmostEqual(models.loss_from_layer_file(path).label_smoothing, 0.1, places=6)
        models.to_layer_file(model, path, (1, 2, 2), loss=nn.CrossEntropyLoss())
        self.assertEqual(models.loss_from_layer_file(path).label_smoothing, 0)

    def test_losses_of_numbers_and_bits(self):
        path = os.path.join(self.folder, "net.textproto")
        module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        generator = torch.Generator().manual_seed(3)
        outputs, numbers = torch.randn(2, 5, 3, generator=generator)
        bits = (numbers > 0).float()
        wrong_bit = -(bits * F.logsigmoid(outputs) + (1 - bits) * F.logsigmoid(-outputs))
        for loss, line, targets, by_output in ((nn.MSELoss(), "loss { mse {} }\n", numbers, (outputs - numbers) ** 2),
                                               (nn.BCEWithLogitsLoss(), "loss { bce {} }\n", bits, wrong_bit)):
            models.to_layer_file(module, path, (1, 2, 2), loss=loss)
            with open(path, encoding="utf-8") as file:
                self.assertTrue(file.read().endswith(line))
            mean, total, each = (models.loss_from_layer_file(path, reduction) for reduction in ("mean", "sum", "none"))
            self.assertEqual((type(mean), type(each)), (type(loss), type(loss)))
            torch.testing.assert_close(mean(outputs, targets), by_output.mean())
            torch.testing.assert_close(each(outputs, targets), by_output)
            # A sample counts once, however many outputs it has.
            torch.testing.assert_close(total(outputs, targets), by_output.mean(1).sum())
            torch.testing.assert_close(total(outputs.double(), targets), by_output.double().mean(1).sum())
            self.assertEqual(total(outputs[:0], targets[:0]).item(), 0)
            # A module that is made from the file keeps the file's loss.
            models.to_layer_file(models.from_layer_file(path, (1, 2, 2)), path, (1, 2, 2))
            self.assertIsInstance(models.loss_from_layer_file(path), type(loss))

    def test_a_module_as_torchvision_writes_it(self):
        model, text = self.round_trip(randomize(Residual()), (3, 12, 12))
        self.assertEqual(self.kinds(text)[:6], [
            ("conv1", "conv2d"), ("layer1.0.conv1", "conv2d"), ("layer1.0.bn1", "batch_norm"),
            ("layer1.0.conv2", "conv2d"), ("layer1.0.bn2", "batch_norm"), ("layer1.0.add", "add")])
        self.assertEqual(self.kinds(text)[-2:], [("avgpool", "global_average_pool"), ("fc", "dense")])
        self.assertNotIn("relu {}", text)
        self.assertEqual(set(model.state_dict()), set(Residual().state_dict()))

    def test_functions_and_methods(self):
        _, text = self.round_trip(Functional(), (1, 28, 28))
        self.assertEqual(self.kinds(text), [
            ("a", "conv2d"), ("b", "conv2d"), ("pool", "max_pool"), ("relu", "relu"), ("add", "add"),
            ("dropout", "dropout"), ("fc1", "dense"), ("fc2", "dense")])
        self.assertIn("fc1\" dense { units: 20 relu: true }", text)

    def test_a_sequence(self):
        module = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Dropout(0.1),
                               nn.AvgPool2d((12, 12)), nn.Flatten(), nn.Linear(3, 10))
        _, text = self.round_trip(module, (1, 28, 28))
        self.assertEqual(self.kinds(text), [("0", "conv2d"), ("2", "max_pool"), ("3", "dropout"),
                                            ("4", "global_average_pool"), ("6", "dense")])
        self.assertIn("dropout { rate: 0.1 }", text)

    def test_a_relu_stays_alone_where_its_input_is_read_twice(self):
        class Fork(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)

            def forward(self, x):
                y = self.fc1(torch.flatten(x, 1))
                return self.fc2(F.relu(y) + y)

        _, text = self.round_trip(Fork(), (1, 2, 2))
        self.assertEqual(self.kinds(text), [("fc1", "dense"), ("relu", "relu"), ("add", "add"), ("fc2", "dense")])


ACTIVATIONS = """layer { name: "conv" conv2d { out_channels: 2 kernel: 3 activation: "leaky_relu" } }
layer { name: "a" activation { function: "relu6" } }
layer { name: "b" activation { function: "leaky_relu" slope: 0.2 } }
layer { name: "c" activation { function: "gelu" } }
layer { name: "fc" dense { units: 4 activation: "gelu_tanh" } }
layer { name: "d" activation { function: "sigmoid" } }
layer { name: "e" scale { factor: 3 } }
layer { name: "f" activation { function: "silu" } }
layer { name: "last" dense { units: 10 activation: "tanh" } }
"""


class ActivationTest(unittest.TestCase):
    def layers_of(self, module):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.textproto")
            models.to_layer_file(module, path, image=(1, 8, 8))
            return [(layer.kind, layer.settings) for layer in layer_file.load(path).layers]

    def test_modules_are_the_same_as_functions(self):
        class Functions(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.fc, self.last = nn.Conv2d(1, 2, 3), nn.Linear(72, 4), nn.Linear(4, 10)

            def forward(self, x):
                x = F.leaky_relu(self.conv(x), inplace=True)
                x = F.gelu(F.leaky_relu(F.relu6(x), 0.2))
                x = F.gelu(self.fc(x.flatten(1)), approximate="tanh")
                return torch.tanh(self.last(F.silu(3 * x.sigmoid())))

        modules = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.2),
                                nn.GELU(), nn.Flatten(), nn.Linear(72, 4), nn.GELU(approximate="tanh"), nn.Sigmoid(),
                                _layer_modules.Scale(3.0), nn.SiLU(), nn.Linear(4, 10), nn.Tanh())
        file = layer_file.parse(ACTIVATIONS.encode(), "activations")
        expected = [(layer.kind, layer.settings) for layer in file.layers]
        self.assertEqual(self.layers_of(Functions()), expected)
        self.assertEqual([one for one in self.layers_of(modules) if one[0] != "flatten"], expected)

    def test_what_a_layer_cannot_be(self):
        # Numbers count as 32 bits have them.
        for module, expected in ((nn.LeakyReLU(0.0), "slope of 0.0"), (nn.LeakyReLU(1e-46), "slope of 1e-46"),
                                 (nn.Dropout(1 - 1e-9), "dropout with p=0.99"),
                                 (nn.Hardswish(), "Hardswish has no counterpart")):
            with self.assertRaisesRegex(models.NoCounterpartError, expected):
                self.layers_of(nn.Sequential(module, nn.Flatten(), nn.Linear(64, 10)))


def without_bias(norm):
    norm.bias = None
    return norm


class RefusalTest(unittest.TestCase):
    def refusal(self, forward, image=(1, 8, 8), error=models.NoCounterpartError, **parts):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.fc = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2 * 64, 10)
                for name, part in parts.items():
                    setattr(self, name, part)

            def forward(self, x):
                return forward(self, x)

        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(error) as refused:
                models.to_layer_file(Net(), os.path.join(folder, "net.textproto"), image)
            self.assertEqual(os.listdir(folder), [])
        return str(refused.exception)

    def test_names_the_operation_and_its_line(self):
        def forward(net, x):
            x = net.conv(x)
            x = torch.exp(x)  # the line
            return net.fc(x.flatten(1))

        with open(__file__, encoding="utf-8") as file:
            line = next(number for number, text in enumerate(file, 1) if text.endswith("# the line\n"))
        self.assertRegex(self.refusal(forward), rf"models_test.py:{line}: exp has no counterpart in a layer file: "
                                                "layers are conv2d, dense, ")

    def test_names_the_module(self):
        text = self.refusal(lambda net, x: net.fc(net.body(x).flatten(1)),
                            body=nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Softplus()))
        self.assertRegex(text, r"models_test.py:\d+, module body.1: Softplus has no counterpart")

    def test_modules(self):
        for module, expected in (
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.LayerNorm(8)), r"LayerNorm of \(8,\) in a tensor of shape"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), without_bias(nn.LayerNorm((2, 8, 8)))), "LayerNorm with bias=None"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), without_bias(nn.GroupNorm(2, 2))), "GroupNorm with bias=None"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.GroupNorm(2, 2, eps=0)), "GroupNorm with eps=0"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.GroupNorm(2, 2, eps=1e-46)), "GroupNorm with eps=1e-46"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, eps=1e-46)), "BatchNorm2d with eps=1e-46"),
                (nn.Conv2d(1, 2, (3, 1), padding=(1, 0)), r"Conv2d with kernel=\(3, 1\)"),
                (nn.Conv2d(1, 2, 3, padding=2, dilation=2), r"Conv2d with dilation=\(2, 2\)"),
                (nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), "padding_mode=circular"),
                (nn.Conv2d(1, 2, 4, padding="same"), "padding=\"same\" and a kernel of 4"),
                (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 3, padding=1, groups=2)), "groups=2"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False)), "affine=False"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, momentum=None)), "momentum=None"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout2d(0.5)), "Dropout2d"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout(1.0)), "p=1.0"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(3, 1, 1, ceil_mode=True)), "ceil_mode=True"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
                 "count_include_pad=False"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d((8, 8))), r"output_size=\(8, 8\)"),
                (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(8, 8)), r"Linear of a tensor with shape \(2, 2, 8, 8\)")):
            with self.subTest(expected):
                self.assertRegex(self.refusal(lambda net, x: net.fc(net.body(x).flatten(1)), body=module),
                                 expected + ".* has no counterpart in a layer file: ")

    def test_functions(self):
        shared = nn.Linear(10, 10)
        for forward, expected in (
                (lambda net, x: F.log_softmax(net.fc(net.conv(x).flatten(1)), 1), "log_softmax .*return the logits"),
                (lambda net, x: net.fc(F.dropout(net.conv(x).flatten(1), 0.5)), "also drops in evaluation"),
                (lambda net, x: net.fc((net.conv(x) + 1).flatten(1)), "addition of tensors of different shapes"),
                (lambda net, x: net.fc((net.conv(x) + net.conv(x)).flatten(1)), "which is called twice"),
                (lambda net, x: net.fc(torch.add(net.conv(x), x, alpha=2).flatten(1)), "addition with alpha"),
                (lambda net, x: net.fc(F.avg_pool2d(net.conv(x), 8, divisor_override=2).flatten(1).repeat(1, 64)),
                 "divisor_override=2"),
                (lambda net, x: net.fc(net.conv(x).mean((1, 2)).repeat(1, 16)), r"a mean over \(1, 2\)"),
                (lambda net, x: net.fc(net.conv(x).view(-1, 128, 1).squeeze(2)), r"view from shape"),
                (lambda net, x: F.linear(net.conv(x).flatten(1), net.fc.weight), "linear .*use the module Linear"),
                (lambda net, x: (net.fc(net.conv(x).flatten(1)),), "the result, which is not one tensor"),
                (lambda net, x: net.twin(net.again(net.fc(net.conv(x).flatten(1)))), "shares a tensor with again"),
                (lambda net, x: net.unequal(x), "forward has other operations in training"),
                (lambda net, x: net.conv(x) if x.sum() > 0 else x, "Net cannot be traced: .*models_test"),
                (lambda net, x: net.fc(x.flatten(1)), "does not take images of shape")):
            twin = nn.Linear(10, 10)
            twin.weight = shared.weight
            with self.subTest(expected):
                self.assertRegex(self.refusal(forward, again=shared, twin=twin, unequal=Unequal()), expected)

    def test_in_place(self):
        def relu(net, x):
            x = net.conv(x)
            y = F.relu_(x)
            return net.fc((x + y).flatten(1))

        def add(net, x):
            y = net.conv(x)
            z = F.relu(y)
            return net.fc((y.add_(z) + z).flatten(1))

        def multiply(net, x):
            y = net.conv(x)
            z = F.relu(y)
            return net.fc((y.mul_(2) + z).flatten(1))

        def add_to_itself(net, x):
            y = z = net.conv(x)
            y += F.relu(y)
            return net.fc((y + z).flatten(1))

        self.assertIn("a ReLU that changes what another operation reads", self.refusal(relu))
        self.assertIn("an addition that changes what another operation reads", self.refusal(add))
        self.assertIn("a product that changes what another operation reads", self.refusal(multiply))
        # PyTorch 1.13 traces it as a sum of its own.
        self.assertRegex(self.refusal(add_to_itself), "an addition that changes|the layers compute something else")

    def test_losses(self):
        smooth = nn.CrossEntropyLoss()
        smooth.label_smoothing = 1 - 1e-12  # 1 as a number of 32 bits
        for loss, error, expected in (
                (nn.L1Loss(), models.NoCounterpartError, "the loss L1Loss has no counterpart .*: use Cross.*BCEWith"),
                (nn.BCELoss(), models.NoCounterpartError, "the loss BCELoss has no counterpart"),
                (nn.MSELoss(reduction="sum"), models.NoCounterpartError, "MSELoss with reduction=sum .*=mean"),
                (nn.BCEWithLogitsLoss(weight=torch.ones(2)), models.NoCounterpartError,
                 "BCEWithLogitsLoss with weight=tensor"),
                (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), models.NoCounterpartError,
                 "BCEWithLogitsLoss with pos_weight=tensor"),
                (nn.BCEWithLogitsLoss(reduction="none"), models.NoCounterpartError, "with reduction=none"),
                (nn.CrossEntropyLoss(weight=torch.ones(10)), models.NoCounterpartError, "weight=tensor"),
                (nn.CrossEntropyLoss(reduction="sum"), models.NoCounterpartError, "reduction=sum .*reduction=mean"),
                (nn.CrossEntropyLoss(ignore_index=0), models.NoCounterpartError, "with ignore_index=0"),
                (smooth, models.LayerFileError, "loss: label_smoothing is 1, it must be 0 or more and below 1")):
            with self.subTest(expected), tempfile.TemporaryDirectory() as folder:
                with self.assertRaisesRegex(error, expected):
                    models.to_layer_file(nn.Sequential(nn.Flatten(), nn.Linear(4, 10)),
                                         os.path.join(folder, "net.textproto"), (1, 2, 2), loss=loss)
                self.assertEqual(os.listdir(folder), [])

    def test_what_the_worker_would_refuse(self):
        text = self.refusal(lambda net, x: net.fc(net.norm(net.conv(x).flatten(1))), error=models.LayerFileError,
                            norm=nn.BatchNorm1d(128))
        self.assertIn("layer norm: batch_norm of a flattened image is not supported", text)
        text = self.refusal(lambda net, x: net.conv(x), error=models.LayerFileError)
        self.assertIn("layer conv: is the last layer, its output must be 2 numbers a sample", text)


class Unequal(nn.Module):
    """Another network in evaluation."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.fc(x.flatten(1))
        return x if self.training else F.relu(x)


if __name__ == "__main__":
    unittest.main()
