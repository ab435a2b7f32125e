"""From a file to predictions: the worker's, and those of the module that the checkpoint becomes."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
    import torch
except ImportError:
    print("SKIPPED: this python3 has no torch, so checkpoints of the worker were not read", file=sys.stderr)
    sys.exit(0)

from starring import models

WORKER = os.path.realpath("worker/worker")
NAMES = ("aster", "lily", "rose \"red\"")


class AfterTrainingTest(unittest.TestCase):

    def run_worker(self, *flags):
        return subprocess.run([WORKER, *flags], capture_output=True, text=True, timeout=60, check=False)

    def test_a_table_with_names(self):
        with tempfile.TemporaryDirectory() as folder:
            generator = torch.Generator().manual_seed(3)
            tests = []
            for part, count in (("train", 90), ("test", 30)):
                with open(f"{folder}/{part}.csv", "w", encoding="utf-8", newline="") as file:
                    rows = csv.writer(file)
                    rows.writerow(["a", "kind", "b", "c"])
                    for number in range(count):
                        values = (torch.randn(3, generator=generator) * 10 + number % 3 * 20).tolist()
                        rows.writerow([values[0], NAMES[number % 3], *values[1:]])
                        tests.append(values)
            tests = torch.tensor(tests[90:])
            data = ["--dataset=csv", f"--data_dir={folder}", "--csv_label=kind"]
            done = self.run_worker(*data, "--model=mlp", "--epochs=2", "--global_batch=16", "--micro_batches=2",
                                   f"--checkpoint_dir={folder}/run", f"--record={folder}/record.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("class 0 has the label", done.stdout)
            with open(f"{folder}/record.json", encoding="utf-8") as file:
                last = json.load(file)["epochs"][-1]
            done = self.run_worker(*data, f"--evaluate={folder}/run")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"loss {last['test_loss']:.6f}, accuracy {100 * last['test_accuracy']:.2f} %", done.stdout)
            self.assertNotIn("not the data", done.stdout)

            done = self.run_worker(*data, f"--predict={folder}/run", f"--out={folder}/out.csv")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"{folder}/out.csv", encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(len(rows), 30)
            model = models.from_checkpoint(f"{folder}/run")
            self.assertEqual(model.class_names, list(NAMES))
            with torch.no_grad():
                wanted = model(tests).softmax(1)
            got = torch.tensor([[float(row[f"p{c}"]) for c in range(3)] for row in rows])
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
            self.assertEqual([row["name"] for row in rows], [NAMES[c] for c in got.argmax(1)])

            # The same answers without labels, which nothing can be compared with.
            with open(f"{folder}/new.csv", "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([["a", "b", "c"], *tests.tolist()])
            with open(f"{folder}/new.libsvm", "w", encoding="utf-8") as file:
                file.writelines(f"1:{a!r} 2:{b!r} 3:{c!r}\n" for a, b, c in tests.tolist())
            for name in ("csv", "libsvm"):
                new = [f"--dataset={name}", f"--data_dir={folder}/new.{name}"]
                done = self.run_worker(*new, f"--predict={folder}/run", f"--out={folder}/new_out.csv")
                self.assertEqual((done.returncode, done.stdout), (0, f"predictions in {folder}/new_out.csv\n"),
                                 done.stderr)
                with open(f"{folder}/new_out.csv", encoding="utf-8", newline="") as file:
                    self.assertEqual(list(csv.DictReader(file)), rows)
                refused = self.run_worker(*new, f"--evaluate={folder}/run")
                self.assertEqual((refused.returncode, "has no labels" in refused.stderr), (2, True), refused.stderr)

            # One file alone is the test set.
            done = self.run_worker("--dataset=csv", f"--data_dir={folder}/test.csv", "--csv_label=kind",
                                   f"--evaluate={folder}/run")
            self.assertIn(f"loss {last['test_loss']:.6f}", done.stdout, done.stderr)

            # Nothing trains here, so labels that hardly repeat are those of classes: the model lacks them.
            with open(f"{folder}/rare.csv", "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([["a", "kind", "b", "c"], *([1, f"{row}.5", 2, 3] for row in range(40))])
            refused = self.run_worker("--dataset=csv", f"--data_dir={folder}/rare.csv", "--csv_label=kind",
                                      "--test_fraction=0.25", f"--evaluate={folder}/run")
            self.assertEqual((refused.returncode, "regression" in refused.stderr), (2, False), refused.stderr)

            refused = self.run_worker(*data, f"--evaluate={folder}/run", "--epochs=3")
            self.assertEqual((refused.returncode, "--epochs is for a training, --evaluate trains nothing" in
                              refused.stderr), (2, True), refused.stderr)

    def test_numbers_and_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            generator = torch.Generator().manual_seed(4)
            inputs = torch.randn(200, 4, generator=generator)
            values = inputs @ torch.tensor([1.0, -2, 0.5, 0]) + 0.1 * torch.randn(200, generator=generator)
            for loss, labels in (("mse", values.tolist()), ("bce", ["yes" if value > 0 else "no" for value in values])):
                with open(f"{folder}/{loss}.csv", "w", encoding="utf-8", newline="") as file:
                    rows = csv.writer(file)
                    rows.writerow(["a", "b", "c", "d", "label"])
                    rows.writerows([*row, label] for row, label in zip(inputs.tolist(), labels))
                with open(f"{folder}/{loss}.textproto", "w", encoding="utf-8") as file:
                    file.write(f'layer {{ name: "fc" dense {{}} }} loss {{ {loss} {{}} }}')
                data = ["--dataset=csv", f"--data_dir={folder}/{loss}.csv", "--test_fraction=0.25"]
                done = self.run_worker(*data, f"--model={folder}/{loss}.textproto", "--epochs=20", "--global_batch=10",
                                       "--learning_rate=0.05", "--micro_batches=2", f"--checkpoint_dir={folder}/{loss}",
                                       f"--record={folder}/record.json")
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(f"{folder}/record.json", encoding="utf-8") as file:
                    test = json.load(file)["test"]
                self.assertEqual(test["loss"], loss)
                self.assertGreater(test["r2"] if loss == "mse" else test["auc"], 0.98)
                done = self.run_worker(*data, f"--evaluate={folder}/{loss}")
                self.assertIn(f"loss {test['mean_loss']:.6f}, ", done.stdout, done.stderr)
                done = self.run_worker(*data, f"--predict={folder}/{loss}", f"--out={folder}/out.csv")
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(f"{folder}/out.csv", encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
                self.assertEqual(len(rows), 50)
                with open(f"{folder}/new.csv", "w", encoding="utf-8", newline="") as file:
                    csv.writer(file).writerows(inputs.tolist())
                done = self.run_worker("--dataset=csv", f"--data_dir={folder}/new.csv", f"--predict={folder}/{loss}",
                                       f"--out={folder}/new.npy")
                self.assertEqual(done.returncode, 0, done.stderr)
                with torch.no_grad():
                    wanted = models.from_checkpoint(f"{folder}/{loss}")(inputs)
                got = torch.from_numpy(numpy.load(f"{folder}/new.npy"))
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
                columns = ["index", "y0"] if loss == "mse" else ["index", "predicted", "name", "p0"]
                self.assertEqual(list(rows[0]), columns)
                if loss == "bce":
                    self.assertEqual({row["name"]: row["predicted"] for row in rows}, {"no": "0", "yes": "1"})
                # A test file alone, with the labels of one class.
                with open(f"{folder}/{loss}.csv", encoding="utf-8") as file:
                    lines = [line for number, line in enumerate(file) if number == 0 or loss == "mse" or "yes" in line]
                with open(f"{folder}/alone.csv", "w", encoding="utf-8") as file:
                    file.writelines(lines)
                done = self.run_worker("--dataset=csv", f"--data_dir={folder}/alone.csv", f"--evaluate={folder}/{loss}")
                self.assertIn(f"of {len(lines) - 1} samples", done.stdout, done.stderr)
                if loss == "bce":
                    self.assertRegex(done.stdout, r"accuracy (9\d\.\d\d|100\.00) %")
                done = self.run_worker("--dataset=csv", f"--data_dir={folder}/alone.csv", f"--predict={folder}/{loss}",
                                       f"--out={folder}/out.csv")
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(f"{folder}/out.csv", encoding="utf-8", newline="") as file:
                    got = torch.tensor([[float(row["y0" if loss == "mse" else "p0"])] for row in csv.DictReader(file)])
                with torch.no_grad():
                    wanted = models.from_checkpoint(f"{folder}/{loss}")(inputs if loss == "mse" else inputs[values > 0])
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


if __name__ == "__main__":
    unittest.main()
