"""Runs every block of worker/data/README.md in its order, on small files of each kind."""

import gzip
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest

try:
    import h5py
    import numpy as np
    from PIL import Image
except ImportError as error:
    print(f"SKIPPED: {error}, so worker/data/README.md was not run: ./deploy/setup.sh --test", file=sys.stderr)
    sys.exit(0)

PAGE = "worker/data/README.md"
WORKER = os.path.realpath("worker/worker")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGE = os.path.realpath("worker/python")


class Svhn(list):
    """As torchvision's: pairs of an image and a label."""

    def __init__(self, root, split, download):
        generator = np.random.default_rng(len(root) + len(split) + download)
        super().__init__((Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8)), number % 10)
                         for number in range(40))


def write_files(generator):
    """The files that the page names, in the current folder."""
    for kind in ("rose", "lily"):
        os.makedirs(f"photos/{kind}")
        for number, name in enumerate(("a.jpg", "b.png", "c.png", "d.jpg", "e.png")):
            size = (40 + number, 50, 3)
            Image.fromarray(generator.integers(0, 256, size, np.uint8)).save(f"photos/{kind}/{name}")
    with h5py.File("measured.h5", "w") as file:
        file["x"] = generator.normal(size=(60, 5))
        file["y"] = generator.integers(0, 3, 60)
    with open("flowers.csv", "w", encoding="utf-8") as file:
        print("width,length,kind", file=file)
        for number in range(40):
            print(number / 7, -number, "rose" if number % 2 else "lily", sep=",", file=file)
    with open("adults.libsvm", "w", encoding="utf-8") as file:
        for number in range(40):
            print(f"{1 - number % 2 * 2:+} {1 + number % 3}:1 9:{number}", file=file)
    with open("houses.csv", "w", encoding="utf-8") as file:
        print("rooms,area,price", file=file)
        for number in range(50):
            print(number % 5, 20 + 7 * number, number / 3 + 0.25, sep=",", file=file)
    np.savez("tagged.npz", train_images=generator.normal(size=(60, 4)),
             train_labels=generator.integers(0, 2, (60, 3)).astype(bool))
    os.mkdir("letters")
    for part, count in (("train", 30), ("t10k", 10)):
        with gzip.open(f"letters/{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(np.array([0x803, count, 28, 28], ">u4").tobytes() + bytes(count * 28 * 28))
        with open(f"letters/{part}-labels-idx1-ubyte", "wb") as file:
            file.write(np.array([0x801, count], ">u4").tobytes() + bytes(range(count)))


class PageTest(unittest.TestCase):
    def test_every_block_runs(self):
        with open(PAGE, encoding="utf-8") as file:
            blocks = BLOCK.findall(file.read())
        self.assertGreater(len(blocks), 10)
        generator = np.random.default_rng(3)
        names = {"images": generator.integers(0, 256, (50, 12, 14, 3), np.uint8),
                 "labels": generator.integers(0, 4, 50)}
        torchvision = types.ModuleType("torchvision")
        torchvision.datasets = types.ModuleType("torchvision.datasets")
        torchvision.datasets.SVHN = Svhn
        sys.modules.update({"torchvision": torchvision, "torchvision.datasets": torchvision.datasets})
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            self.addCleanup(os.chdir, "/")
            write_files(generator)
            # Three steps of a training are enough; other calls are left as they are.
            with open("worker", "w", encoding="utf-8") as file:
                file.write(f'#!/bin/bash\ncase "$*" in *--model=*) set -- "$@" --max_steps=3 ;; esac\n'
                           f'exec {WORKER} "$@"\n')
            os.chmod("worker", 0o755)
            environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PYTHONPATH=PACKAGE)
            for language, block in blocks:
                self.assertIn(language, ("bash", "python"), block)
                with self.subTest(block):
                    if language == "python":
                        exec(block, names)
                        continue
                    block = block.replace("python3 ", f"{sys.executable} ")
                    done = subprocess.run(["bash", "-euc", block], env=environment, capture_output=True, text=True,
                                          timeout=60, check=False)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open("predictions.csv", encoding="utf-8") as file:
                rows = file.read().splitlines()
            self.assertEqual(len(rows), 51)
            self.assertRegex(rows[0], "^index,predicted,p0")
            with open("prices.csv", encoding="utf-8") as file:
                rows = file.read().splitlines()
            self.assertEqual((rows[0], len(rows)), ("index,y0", 11))


if __name__ == "__main__":
    unittest.main()
