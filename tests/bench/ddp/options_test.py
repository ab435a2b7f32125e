"""The peer's command line and the `config` of its record against the worker's flags. Needs no PyTorch."""

import contextlib
import io
import json
import os
import sys
import tempfile
import types
import unittest

import options


def worker_flags():
    with open("bench/ddp/worker_flags.json", encoding="utf-8") as file:
        return json.load(file)


class OptionsTest(unittest.TestCase):
    def refusal(self, word):
        text = io.StringIO()
        with contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as end:
            options.parse([word])
        self.assertEqual(end.exception.code, 2)
        return text.getvalue()

    def test_shared_flags_have_the_workers_defaults_and_limits(self):
        flags = options.parse([])
        for name, flag in worker_flags().items():
            if not flag["peer"]:
                continue
            default = int(flag["default"]) if flag["type"] == "int" else flag["default"]
            self.assertEqual(getattr(flags, name), default, name)
            if flag["type"] != "str" or "choices" in flag:
                self.assertIn(name, self.refusal(f"--{name}=no such value"))
            if flag["type"] == "int":
                self.assertIn("is not from", self.refusal(f"--{name}={flag['least'] - 1}"))
                self.assertIn("is not from", self.refusal(f"--{name}={flag['most'] + 1}"))

    def test_a_model_is_a_shipped_one_or_a_layer_file(self):
        self.assertEqual(options.parse(["--model=resnet20"]).model, "resnet20")
        self.assertIn("use one of lenet5, logreg, mlp, mnist_cnn, mobilenet_v2, resnet18, resnet20",
                      self.refusal("--model=lenet6"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "own.textproto")
            self.assertIn(f"layer file {path}: No such file", self.refusal(f"--model={path}"))
            with open(path, "w", encoding="utf-8") as file:
                file.write('layer { name: "fc" dense { units: 10 } }')
            self.assertEqual(options.parse([f"--model={path}"]).model, path)
            with open(path, "w", encoding="utf-8") as file:
                file.write('layer {\n name: "fc" dense { unit: 10 } }')
            self.assertIn(f"{path}:2:21: Dense has no field", self.refusal(f"--model={path}"))
        self.assertNotIn("torch", sys.modules)

    def test_the_record_has_every_flag_that_the_workers_record_has(self):
        dataset = types.SimpleNamespace(train_labels=[1, 2], test_labels=[3])
        device = types.SimpleNamespace(world_size=2, torch=types.SimpleNamespace(type="cpu"), math="fp32", is_gpu=False)
        flags = options.parse(["--epochs=3", "--seed=9", "--nesterov"])
        config = options.config(flags, dataset, device, 12, False)
        self.assertEqual(set(config), set(worker_flags()) | {"chunk_bytes", "deterministic", "server_count", "security",
                                                             "train_count", "test_count"})
        self.assertEqual((config["sync"], config["epochs"], config["seed"], config["nesterov"]), ("ddp", 3, "9", True))
        self.assertFalse(config["deterministic"])
        deterministic = options.config(options.parse(["--deterministic"]), dataset, device, 12, False)
        self.assertTrue(deterministic["deterministic"])
        for flags, world_size, sync in ((["--hook=star"], 2, "ddp+star"), (["--hook=ring"], 1, "local")):
            device.world_size = world_size
            self.assertEqual(options.config(options.parse(flags), dataset, device, 12, False)["sync"], sync)
        self.assertEqual((config["servers"], config["checkpoint_dir"], config["lanes"], config["metrics_port"]),
                         ([], "", 0, -1))


if __name__ == "__main__":
    unittest.main()
