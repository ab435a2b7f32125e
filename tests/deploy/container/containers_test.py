"""Tests the image: what its recipes say, and its programs on a root that is read-only, with a /dev/shm of 64 KiB, as
user 1000 without capabilities, and with a CPU quota."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tarfile
import tempfile
import time
import unittest
from typing import Any, Optional

from pods import ARCHIVE, Container, Mount, Pod, PodTest, RunningPod

CONTAINERFILE = os.path.abspath("deploy/container/Containerfile")
DEFINITION = os.path.abspath("deploy/container/starring.def")
SMALL = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--global_batch=32",
         "--epochs=2"]
ENDLESS = ["--dataset=synthetic", "--synthetic_train_count=4000", "--synthetic_test_count=50", "--epochs=1000"]
ROOT_OF_GROUPS = "/sys/fs/cgroup"


def instructions(path: str) -> list[tuple[str, str]]:
    """Of a Containerfile, without comments."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def sections(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """The header of an Apptainer definition, and its sections by name."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if not line.startswith("#")]
    header: dict[str, str] = {}
    found: dict[str, str] = {}
    name: Optional[str] = None
    for line in lines:
        if line.startswith("%"):
            name = line[1:].strip()
            found[name] = ""
        elif name is not None:
            found[name] += line + "\n"
        elif line:
            header[line.split(":", 1)[0]] = line.split(":", 1)[1].strip()
    return header, found


class RecipeTest(unittest.TestCase):

    def test_the_image_is_the_bundle(self) -> None:
        found = instructions(CONTAINERFILE)
        self.assertEqual([name for name, _ in found], ["FROM", "ADD", "ENV", "USER", "CMD"])
        values = dict(found)
        self.assertEqual(values["FROM"], "scratch")
        self.assertEqual(values["ADD"], os.path.basename(ARCHIVE) + " /")
        self.assertEqual(values["USER"], "1000:1000")
        folder = values["ENV"].removeprefix("PATH=")
        with tarfile.open(ARCHIVE) as archive:
            members = {"/" + member.name for member in archive if member.mode & 0o001}
        for command in [json.loads(values["CMD"])] + self.commands():
            self.assertIn("%s/%s" % (folder, command[0]), members)

    def commands(self) -> list[list[str]]:
        """Those that the comments show, from the name of the program on."""
        with open(CONTAINERFILE, encoding="utf-8") as file:
            text = re.sub(r" \\\n# *", " ", file.read())
        found = [shlex.split(match) for match in re.findall(r"^# +podman run .*starring:0\.1 (.*)$", text, re.M)]
        self.assertGreaterEqual(len(found), 3)
        return found

    def test_apptainer_unpacks_the_same(self) -> None:
        header, found = sections(DEFINITION)
        self.assertEqual(header, {"Bootstrap": "scratch"})
        # The others need a shell in the image.
        self.assertEqual(set(found), {"setup", "environment", "labels", "help"})
        with tempfile.TemporaryDirectory() as folder:
            place, root = os.path.join(folder, "place"), os.path.join(folder, "root")
            os.makedirs(place)
            os.makedirs(root)
            os.symlink(ARCHIVE, os.path.join(place, os.path.basename(ARCHIVE)))
            subprocess.run(["sh", "-ec", found["setup"]], cwd=place, check=True,
                           env={"APPTAINER_ROOTFS": root, "PATH": "/usr/bin:/bin"})
            path = re.search(r"export PATH=(\S+)", found["environment"])
            assert path is not None
            for program in ("worker", "server", "launch", "table"):
                self.assertTrue(os.access("%s%s/%s" % (root, path[1], program), os.X_OK), program)
            for above, _, _ in os.walk(root):
                os.chmod(above, 0o755)


class ContainerTest(PodTest):

    def setUp(self) -> None:
        self.begin_node()
        self.out = self.node.make_folder("out")

    def start(self, words: list[str], *, has_folders: bool = True, control_group: Optional[str] = None) -> RunningPod:
        mounts = [Mount(self.node.make_folder("tmp"), "/tmp"), Mount(self.out, "/out")] if has_folders else []
        return self.node.start(Pod("alone", Container(["/starring/bin/" + words[0], *words[1:]], {}, mounts)),
                               control_group)

    def train(self, words: list[str], control_group: Optional[str] = None) -> Any:
        """Trains to the end in a container and returns the record."""
        pod = self.start([*words, "--record=/out/record.json"], control_group=control_group)
        self.assertEqual(pod.wait(), 0, pod.text())
        with open(os.path.join(self.out, "record.json"), encoding="utf-8") as file:
            return json.load(file)

    def plain_digest(self, words: list[str]) -> str:
        record = os.path.join(self.above, "plain.json")
        subprocess.run([os.path.join(self.bundle, "bin", words[0]), *words[1:], "--record=" + record], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        with open(record, encoding="utf-8") as file:
            return str(json.load(file)["parameter_sha256"])

    def until(self, pod: RunningPod, text: str) -> None:
        end = time.monotonic() + 60
        while text not in pod.text():
            self.assertIsNone(pod.process.poll(), pod.text())
            self.assertLess(time.monotonic(), end, pod.text())
            time.sleep(0.02)  # the period of looks at its output

    def test_a_worker_alone(self) -> None:
        words = ["worker", *SMALL]
        self.assertEqual(self.train(words)["parameter_sha256"], self.plain_digest(words))

    def test_star_and_ring(self) -> None:
        digest = self.plain_digest(["launch", "--sync=ring", "--transport=tcp", "--workers=2", "--", *SMALL])
        for flags in (["--sync=star", "--servers=2"], ["--sync=ring", "--transport=tcp"],
                      ["--sync=star", "--transport=tcp"], ["--sync=star", "--transport=tcp", "--servers=1"]):
            record = self.train(["launch", *flags, "--workers=2", "--", *SMALL])
            self.assertEqual(record["parameter_sha256"], digest, flags)
            # Its memory is no file in /dev/shm, which is smaller than one array.
            self.assertTrue(record["exchange"]["shared_memory"], flags)
            self.assertEqual(record["exchange"]["not_shared"], "")

    def test_a_ring_over_mpi(self) -> None:
        record = self.train(["launch", "--sync=ring", "--workers=2", "--", *SMALL])
        # Open MPI complains where /dev/shm is too small for its shared memory.
        self.assertNotIn("mpirun |", self.node.pods[-1].text())
        digest = self.plain_digest(["launch", "--sync=ring", "--transport=tcp", "--workers=2", "--", *SMALL])
        self.assertEqual(record["parameter_sha256"], digest)

    def test_process_1_stops_when_it_is_asked(self) -> None:
        for words in (["worker", *ENDLESS, "--checkpoint_dir=/out/worker"],
                      ["launch", "--sync=ring", "--transport=tcp", "--workers=2", "--", *ENDLESS,
                       "--checkpoint_dir=/out/ring"]):
            pod = self.start(words)
            self.until(pod, "epoch 1/1000")
            self.assertEqual(pod.facts()["NSpid"].split()[-1], "1")
            pod.send(signal.SIGTERM)
            self.assertEqual(pod.wait(), 0, pod.text())
            self.assertIn("saved in /out/", pod.text())

    def test_a_read_only_root_is_named(self) -> None:
        for words, code, sentence in (
                (["launch", "--workers=2", "--", *SMALL], 1, r"/tmp/starring\.\w+: No such file .*; set TMPDIR"),
                (["worker", *SMALL, "--checkpoint_dir=/out"], 1, "cannot create /out: Read-only file system"),
                (["worker", *SMALL, "--record=/r"], 2, r"/r\.tmp\.alone\.1: Read-only file system: name a file in"),
                (["launch", "--make_secret=/secret"], 2, "/secret: Read-only file system")):
            pod = self.start(words, has_folders=False)
            self.assertEqual(pod.wait(), code, pod.text())
            self.assertRegex(pod.text(), sentence)

    def test_a_quota_counts(self) -> None:
        group = self.quota_group()
        record = self.train(["worker", *SMALL], group)
        self.assertEqual(record["host"]["cpu_quota"], 0.5)
        record = self.train(["launch", "--sync=ring", "--transport=tcp", "--workers=2", "--", *SMALL], group)
        self.assertEqual(record["host"]["cpu_quota"], 0.5)

    def quota_group(self) -> str:
        """A control group that grants half a core."""
        version_1 = os.path.join(ROOT_OF_GROUPS, "cpu")
        parent = version_1 if os.path.exists(version_1 + "/cpu.shares") else ROOT_OF_GROUPS
        group = os.path.join(parent, "starring-test-%d" % os.getpid())
        try:
            os.mkdir(group)
            self.addCleanup(os.rmdir, group)
            limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"} if parent == version_1 else {
                "cpu.max": "50000 100000"}
            for name, value in limits.items():
                with open(os.path.join(group, name), "w", encoding="ascii") as file:
                    file.write(value)
        except OSError as error:
            self.skipTest("no CPU quota can be set here, all else was tried: %s" % error)
        return group


if __name__ == "__main__":
    unittest.main()
