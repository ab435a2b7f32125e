"""Folders of images become the arrays that they should, the worker trains on them, and a bad file is named."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    from PIL import Image
except ImportError as error:
    print(f"SKIPPED: {error}, so starring.pack was not tested: ./deploy/setup.sh --test", file=sys.stderr)
    sys.exit(0)

from starring import pack

WORKER = os.path.realpath("worker/worker")


class PackTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source, self.out = self.folder.name + "/in", self.folder.name + "/out"

    def image(self, path, pixels, **more):
        path = f"{self.source}/{path}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Image.fromarray(pixels).save(path, **more)
        return path

    def pack(self, *flags):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = pack.main([self.source, self.out, *flags])
        return code, out.getvalue() + err.getvalue()

    def array(self, name):
        return np.load(f"{self.out}/{name}.npy", allow_pickle=False)

    def refusal(self):
        code, text = self.pack()
        self.assertEqual(code, 2, text)
        return text

    def test_classes_are_sorted_folders(self):
        for name, value in (("dog", 10), ("Zebra", 20), ("cat", 30)):
            for i in range(2):
                self.image(f"{name}/{i}.png", np.full((8, 8, 3), value + i, np.uint8))
        self.image("cat/deep/er.PNG", np.full((8, 8, 3), 99, np.uint8))
        with open(self.source + "/cat/notes.txt", "w", encoding="utf-8") as file:
            file.write("no image")
        code, text = self.pack("--size=8")
        self.assertEqual(code, 0, text)
        self.assertIn("7 images of train", text)
        self.assertIn("--test_fraction=0.1", text)
        with open(self.out + "/classes.txt", encoding="utf-8") as file:
            self.assertEqual(file.read(), "Zebra\ncat\ndog\n")
        self.assertEqual(self.array("train_labels").tolist(), [0, 0, 1, 1, 1, 2, 2])
        self.assertEqual(self.array("train_images")[:, 0, 0, 0].tolist(), [20, 21, 30, 31, 99, 10, 11])
        self.assertEqual(sorted(os.listdir(self.out)), ["classes.txt", "train_images.npy", "train_labels.npy"])

    def test_short_side_and_centre(self):
        wide = np.zeros((4, 12, 3), np.uint8)
        wide[:, 4:8] = 200
        self.image("a/wide.png", wide)
        self.image("a/tall.png", np.ascontiguousarray(wide.transpose(1, 0, 2)))
        turned = Image.Exif()
        turned[0x0112] = 6  # the camera was turned
        left = np.zeros((8, 8, 3), np.uint8)
        left[:, :4] = 200
        self.image("a/xturned.jpg", left, exif=turned, quality=100, subsampling=0)
        self.assertEqual(self.pack("--size=4")[0], 0)
        tall, wide, turned = self.array("train_images").astype(int)
        self.assertEqual(tall.min(), 200)
        self.assertEqual(wide.min(), 200)
        # The left side is above now.
        self.assertGreater(turned[0].min(), 190)
        self.assertLess(turned[3].max(), 10)

    def test_grey_only_if_all_are(self):
        self.image("a/1.png", np.arange(64, dtype=np.uint8).reshape(8, 8))
        self.image("a/2.png", np.arange(0, 64 * 256, 256, dtype=np.uint16).reshape(8, 8))
        self.assertEqual(self.pack("--size=8")[0], 0)
        self.assertEqual(self.array("train_images").reshape(2, 64).tolist(), [list(range(64))] * 2)
        self.image("b/3.png", np.zeros((8, 8, 3), np.uint8))
        self.assertEqual(self.pack("--size=8")[0], 0)
        self.assertEqual(self.array("train_images").shape, (3, 8, 8, 3))

    def test_the_worker_trains(self):
        generator = np.random.default_rng(5)
        for part, count in (("train", 12), ("val", 4)):
            for name in ("cat", "dog"):
                for i in range(count):
                    self.image(f"{part}/{name}/{i}.jpg", generator.integers(0, 256, (20, 30, 3), np.uint8))
        code, text = self.pack("--size=16")
        self.assertEqual(code, 0, text)
        self.assertIn("24 images of train, 8 images of test", text)
        self.assertNotIn("--test_fraction", text)
        done = subprocess.run([WORKER, "--dataset=npy", "--data_dir=" + self.out, "--model=lenet5", "--epochs=1",
                               "--global_batch=8", "--checkpoint_dir=none"],
                              timeout=100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout.decode())
        # Another folder without a test set leaves none of this one's.
        self.source += "/train"
        self.assertEqual(self.pack("--size=16")[0], 0)
        self.assertEqual(sorted(os.listdir(self.out)), ["classes.txt", "train_images.npy", "train_labels.npy"])

    def test_what_cannot_be_packed_is_named(self):
        self.assertIn("in cannot be read", self.refusal())
        os.makedirs(self.source + "/a")
        self.assertIn("in has no images: expected .png, .jpg, .jpeg in a folder for each class", self.refusal())
        self.image("a/good.png", np.zeros((8, 8, 3), np.uint8))
        path = self.image("b/bad.png", np.arange(3 * 64 * 64, dtype=np.uint8).reshape(64, 64, 3))
        os.truncate(path, os.path.getsize(path) // 2)
        self.assertIn(path + " is no image that can be read", self.refusal())
        self.assertFalse(os.path.exists(self.out + "/train_images.npy"))
        with open(path, "w", encoding="utf-8") as file:
            file.write("<html>")
        self.assertIn(path + " is no image that can be read", self.refusal())
        os.remove(path)
        self.image("train/1.png", np.zeros((8, 8, 3), np.uint8))  # a class
        self.assertEqual(self.pack()[0], 0)
        os.makedirs(self.source + "/train/a")
        os.makedirs(self.source + "/val/b")
        self.image("train/a/1.png", np.zeros((8, 8, 3), np.uint8))
        self.assertIn("val has the class b, the training set has a", self.refusal())
        os.makedirs(self.source + "/test")
        self.assertIn("has both test and val", self.refusal())


if __name__ == "__main__":
    unittest.main()
