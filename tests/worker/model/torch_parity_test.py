"""Compares our networks with PyTorch's, which compute in double precision, on the same weights and batches.

tests/worker/model/parity_run trains each shipped model for four steps and leaves weights, batches, losses and gradients
in safetensors files. They are read here by fifteen lines of Python, which proves the checkpoint's format too: the model
of bench/ddp/models.py takes model.safetensors with strict=True, and computes the same.
"""

import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

try:
    import torch
except ImportError:  # A machine without torch runs Starring; what is compared with PyTorch is not tested there.
    print("SKIPPED: this python3 has no torch, so no network was compared with PyTorch", file=sys.stderr)
    sys.exit(0)

import models
from torch.nn import functional as F

# By name: layers that no shipped model has, and the shape of an image (height, width, channels). Each is a model whose
# last layer is dense {}.
PARITY = {
    "overlapping_pools": ("""layer { name: "c" conv2d { out_channels: 4 kernel: 3 stride: 2 padding: 2 } }
layer { name: "p" max_pool { kernel: 3 stride: 2 padding: 1 } }
layer { name: "g" global_average_pool {} }
layer { name: "fc" dense {} }
""", (9, 11, 3)),
}

PARITY["depthwise"] = ("""layer { name: "c" conv2d { out_channels: 5 kernel: 3 } }
layer { name: "d" conv2d { kernel: 3 stride: 2 padding: 1 depthwise: true relu: true } }
layer { name: "p" average_pool { kernel: 3 stride: 2 padding: 1 } }
layer { name: "e" conv2d { kernel: 2 depthwise: true no_bias: true activation: "tanh" } }
layer { name: "fc" dense {} }
""", (11, 12, 3))
PARITY["concat"] = ("""layer { name: "c" conv2d { out_channels: 5 kernel: 3 padding: 1 activation: "silu" } }
layer { name: "d" conv2d { out_channels: 4 kernel: 3 padding: 1 } }
layer { name: "j" input: "c" input: "input" input: "d" concat {} }
layer { name: "u" dense { units: 6 } }
layer { name: "v" input: "j" dense { units: 3 activation: "tanh" } }
layer { name: "k" input: "u" input: "v" concat {} }
layer { name: "fc" dense {} }
""", (5, 6, 3))
PARITY["group_norm"] = ("""layer { name: "c" conv2d { out_channels: 6 kernel: 3 } }
layer { name: "n" group_norm { groups: 3 epsilon: 0.01 } }
layer { name: "s" activation { function: "silu" } }
layer { name: "d" dense { units: 8 } }
layer { name: "o" group_norm { groups: 2 } }
layer { name: "fc" dense {} }
""", (7, 8, 3))
PARITY["layer_norm"] = ("""layer { name: "c" conv2d { out_channels: 6 kernel: 3 } }
layer { name: "n" layer_norm { epsilon: 0.01 } }
layer { name: "s" activation { function: "gelu" } }
layer { name: "d" dense { units: 8 } }
layer { name: "o" layer_norm {} }
layer { name: "fc" dense {} }
""", (7, 8, 3))
# Here too, because its lines end with activations: each kind in a field and as a layer.
KINDS = ("relu6", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "leaky_relu")
PARITY["activation_fields"] = ("".join(
    f"layer {{ name: \"{kind}\" dense {{ units: 7 activation: \"{kind}\" }} }}\n" for kind in KINDS) +
    "layer { name: \"fc\" dense {} }\n", (3, 3, 1))
PARITY["activations"] = ("layer { name: \"c\" conv2d { out_channels: 4 kernel: 3 activation: \"silu\" } }\n" + "".join(
    f"layer {{ name: \"{kind}\" activation {{ function: \"{kind}\" }} }}\n"
    f"layer {{ name: \"{kind}.scale\" scale {{ factor: 0.5 }} }}\n" for kind in KINDS) +
    "layer { name: \"fc\" dense {} }\n", (5, 6, 3))

# The errors of float activations and sums, relative to the largest value of a tensor. The reference device sums in
# double.
TOLERANCES = {"reference": 2e-6, "cpu": 1e-5}
# Losses in bf16 beside those of PyTorch's autocast, which rounds at other places.
BF16_LOSSES = 5e-2
# The error of the first gradients beside autocast's. It is a matter of ReLUs: an input that rounds to another sign
# moves a whole gradient.
BF16_GRADIENTS = 1.5


def load_safetensors(path):
    """What safetensors.torch.load_file does, for the types that we write."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = {"F32": torch.float32, "I64": torch.int64}[entry["dtype"]]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=dtype).reshape(entry["shape"])
    return tensors


def find_checkpoint(folder):
    folders = glob.glob(f"{folder}/step-*")
    assert len(folders) == 1, folders
    return folders[0]


class TorchParityTest(unittest.TestCase):
    def run_ours(self, device, name, height, width, channels, seed, folder):
        binary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parity_run")
        subprocess.run([binary, device, name, str(height), str(width), str(channels), str(seed), folder], check=True)
        return load_safetensors(f"{folder}/run.safetensors")

    def load_model(self, name, height, width, channels, checkpoint):
        model = models.create(name, channels=channels, height=height, width=width, classes=10)
        state = load_safetensors(f"{checkpoint}/model.safetensors")
        model.load_state_dict(state, strict=True)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model.double()

    def assert_close(self, ours, theirs, what, tolerance):
        difference = (ours.double() - theirs.double()).abs().max().item()
        scale = theirs.abs().max().item() + self.floor
        self.assertLess(difference, tolerance * scale,
                        f"{what}: differs by {difference}, largest value {scale}; "
                        f"an input of a ReLU came as close to zero as {self.nearest_kink:.1e}")

    def relu(self, x):
        self.nearest_kink = min(self.nearest_kink, x.detach().abs().min().item())
        return torch.relu(x)

    # If a ReLU's input is zero up to rounding, rounding decides whether a whole gradient passes, and from the next step
    # on the runs diverge. So do two runs in double precision whose weights differ by 1e-6. Hence each seed is one with
    # which no input comes that near zero in four steps. A network with too many inputs for that makes one step only.
    def compare(self, name, height, width, channels, amplification=1, devices=("reference", "cpu"), seed=2, steps=4,
                floor=1e-3):
        # Beside the largest value of a tensor. Where a batch norm takes a bias away again, its gradient is rounding.
        self.floor = floor
        for device in devices:
            tolerance = TOLERANCES[device]
            self.nearest_kink = math.inf
            with self.subTest(device=device, height=height, width=width), mock.patch.object(F, "relu", self.relu):
                self.compare_on(device, name, height, width, channels, seed, steps, tolerance * amplification)

    def compare_on(self, device, name, height, width, channels, seed, steps, tolerance):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_ours(device, name, height, width, channels, seed, folder)
            model = self.load_model(name, height, width, channels, find_checkpoint(f"{folder}/initial"))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
            losses = []
            for step, (images, labels) in enumerate(zip(run["images"].double()[:steps], run["labels"])):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                losses.append(loss.item())
                if step == 0:
                    for tensor, parameter in model.named_parameters():
                        self.assert_close(run[f"gradient.{tensor}"], parameter.grad.flatten(), f"gradient of {tensor}",
                                          tolerance)
                optimizer.step()
            self.assert_close(run["losses"][:steps], torch.tensor(losses), "losses", tolerance)
            if steps == len(run["losses"]):
                self.compare_final(model, optimizer, run, find_checkpoint(f"{folder}/final"), tolerance)

    def compare_final(self, model, optimizer, run, checkpoint, tolerance):
        state = load_safetensors(f"{checkpoint}/model.safetensors")
        self.assertEqual(set(state), set(model.state_dict()))
        for tensor, value in model.state_dict().items():
            if tensor.endswith("num_batches_tracked"):
                self.assertEqual(state[tensor].item(), value.item())
            else:
                self.assert_close(state[tensor], value, tensor, tolerance)
        momentum = load_safetensors(f"{checkpoint}/optimizer.safetensors")
        for tensor, parameter in model.named_parameters():
            expected = optimizer.state[parameter]["momentum_buffer"]
            self.assertEqual(momentum[f"{tensor}.momentum_buffer"].shape, expected.shape)
            self.assert_close(momentum[f"{tensor}.momentum_buffer"], expected, f"momentum of {tensor}", 10 * tolerance)
        model.eval()
        with torch.no_grad():
            logits = model(run["images"][-1].double())
        loss = F.cross_entropy(logits, run["labels"][-1])
        self.assert_close(run["evaluation"][0], loss, "loss in evaluation", tolerance)
        self.assertEqual(run["evaluation"][1].item(), (logits.argmax(1) == run["labels"][-1]).sum().item())

    @staticmethod
    def bf16_loss(model, images, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels)

    # Activations are stored in bfloat16, on an emulated GPU.
    def compare_bf16(self, name, height, width, channels, seed=2, steps=20):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_ours("bf16", name, height, width, channels, seed, folder)
            initial = find_checkpoint(f"{folder}/initial")
            exact, model = (self.load_model(name, height, width, channels, initial) for _ in range(2))
            F.cross_entropy(exact(run["images"][0].double()), run["labels"][0]).backward()
            optimizer = torch.optim.SGD(model.float().parameters(), lr=0.02, momentum=0.9)
            worst = 0.0
            for step, (images, labels) in enumerate(zip(run["images"][:steps], run["labels"])):
                optimizer.zero_grad()
                loss = self.bf16_loss(model, images, labels)
                loss.backward()
                if step == 0:
                    self.compare_bf16_gradients(run, exact, model)
                optimizer.step()
                worst = max(worst, abs(run["losses"][step].item() - loss.item()) / loss.item())
            print(f"{name} in bf16: {steps} losses within {worst:.1e} of autocast's")
            self.assertEqual(len(run["losses"]), 20)
            self.assertLess(worst, BF16_LOSSES)

    def compare_bf16_gradients(self, run, exact, autocast):
        """Ours are about as far from those in double precision as autocast's."""
        worst = [0.0, 0.0]
        for (tensor, parameter), theirs in zip(exact.named_parameters(), autocast.parameters()):
            right = parameter.grad.flatten()
            for i, gradient in enumerate((run[f"gradient.{tensor}"], theirs.grad.flatten())):
                worst[i] = max(worst[i], ((gradient.double() - right).norm() / right.norm()).item())
        print(f"gradients' largest relative error: {worst[0]:.3f}, autocast's {worst[1]:.3f}")
        self.assertLess(worst[0], BF16_GRADIENTS * worst[1])

    def test_bf16(self):
        self.compare_bf16("logreg", 28, 28, 1)
        self.compare_bf16("mlp", 28, 28, 1)
        self.compare_bf16("lenet5", 28, 28, 1)
        self.compare_bf16("mnist_cnn", 12, 14, 1)

    # Batch norms amplify the rounding of each step: with five small images any two runs in bf16 part after some steps.
    def test_bf16_resnet20(self):
        self.compare_bf16("resnet20", 16, 16, 3, steps=3)

    def test_logreg(self):
        self.compare("logreg", 28, 28, 1)

    def test_logreg_of_coloured_images(self):
        self.compare("logreg", 5, 7, 3)

    def test_mlp(self):
        self.compare("mlp", 28, 28, 1)

    def test_lenet5(self):
        self.compare("lenet5", 28, 28, 1)

    def test_lenet5_of_coloured_images(self):
        self.compare("lenet5", 20, 24, 3)

    # For large images the reference device takes seconds, and minutes under a sanitizer.
    def test_mnist_cnn(self):
        self.compare("mnist_cnn", 12, 14, 1)
        self.compare("mnist_cnn", 28, 28, 1, devices=["cpu"])

    def test_resnet20(self):
        # Twenty normalisations in a row amplify the rounding of each.
        self.compare("resnet20", 8, 12, 3, amplification=10, seed=19)
        self.compare("resnet20", 32, 32, 3, amplification=10, devices=["cpu"], steps=1)

    # On the CPU alone: the reference device would take minutes.
    def test_resnet18(self):
        # The last batch norms have five values for each channel.
        self.compare("resnet18", 8, 8, 3, amplification=30, devices=["cpu"], seed=1, steps=1)

    def test_mobilenet_v2(self):
        self.compare("mobilenet_v2", 16, 16, 3, amplification=10, devices=["cpu"], steps=1, floor=0.1)

    def test_tabular_mlp(self):
        self.compare("tabular_mlp", 1, 1, 14, amplification=10)

    def test_layers_that_no_shipped_model_has(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, (text, shape) in PARITY.items():
                path = os.path.join(folder, name + ".textproto")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.compare(path, *shape)


if __name__ == "__main__":
    unittest.main()
