"""Tests the wheels of the package and of the programs: their lists, what their files need of a machine, and what they
do once they are installed."""

import base64
import csv
import email
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

import starring_programs
from deploy.bundle.elf_file import ElfFile, is_elf
from deploy.bundle.make_bundle import GLIBC, BundleError
from deploy.wheel import make_wheel
from loaded_files import LoadedFiles

WHEEL, = map(os.path.abspath, glob.glob("deploy/starring-*.whl"))
PROGRAMS_WHEEL, = map(os.path.abspath, glob.glob("deploy/starring_programs-*.whl"))
VERSION = os.path.basename(WHEEL).split("-")[1]
PYTHON = "/usr/bin/python3"
SECONDS_MAX = 240  # for all waits that a loaded machine may delay
# The newest versions that Debian 12 has: of glibc, and of GCC 12's two libraries.
FLOORS = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
JOB = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--global_batch=32",
       "--max_steps=40", "--progress=plain", "--checkpoint_dir=none"]
PAGES = ("deploy/README.md", "worker/python/README.md")
EXAMPLES = os.path.abspath("worker/python/learn")


def is_of_machine(path):
    name = os.path.basename(path)
    return bool(GLIBC.fullmatch(name) or make_wheel.COMPILER.fullmatch(re.sub(r"\.so\.6\.0\.\d+$", ".so.6", name)))


def run_to_end(command, environment=None, watch=None):
    """Runs a command in /, with only `environment`. Returns its exit code, and its standard output and error."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment or {}, cwd="/", stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT)
        end = time.monotonic() + SECONDS_MAX
        while process.poll() is None and time.monotonic() < end:
            if watch is not None:
                watch()
            time.sleep(0.01)  # the period of looks at the processes
        process.kill()
        process.wait()
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


class Archive:
    """A wheel as a file: the tests of both. The subclasses say which."""

    path = ""
    project = ""
    needs = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.project.replace("-", "_")
        cls.info = f"{cls.folder}-{VERSION}.dist-info"
        with zipfile.ZipFile(cls.path) as archive:
            cls.members = archive.infolist()
            cls.files = {member.filename: archive.read(member) for member in cls.members}

    def text(self, name):
        return self.files[f"{self.info}/{name}"].decode()

    def test_record_lists_every_file_with_its_hash(self):
        rows = {row[0]: row[1:] for row in csv.reader(self.text("RECORD").splitlines())}
        self.assertEqual(rows.pop(f"{self.info}/RECORD"), ["", ""])
        expected = {}
        for name, data in self.files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            expected[name] = [f"sha256={digest}", str(len(data))]
        del expected[f"{self.info}/RECORD"]
        self.assertEqual(rows, expected)

    def test_metadata(self):
        metadata = email.message_from_string(self.text("METADATA"))
        self.assertEqual((metadata["Name"], metadata["Version"]), (self.project, VERSION))
        self.assertNotIn("@", self.text("METADATA"))
        wheel = email.message_from_string(self.text("WHEEL"))
        self.assertEqual(wheel.get_all("Tag"), ["py3-none-linux_x86_64"])
        self.assertTrue(self.path.endswith(f"-{wheel['Tag']}.whl"))
        self.assertEqual(wheel["Root-Is-Purelib"], "false")
        self.assertIn("Apache License", self.text("LICENSE"))

    def test_the_same_files_give_the_same_bytes(self):
        files = {member.filename: (self.files[member.filename], member.external_attr >> 16 & 0o777)
                 for member in reversed(self.members)}
        with tempfile.TemporaryDirectory() as folder:
            again = os.path.join(folder, "again.whl")
            make_wheel.write_wheel(files, again)
            with open(self.path, "rb") as one, open(again, "rb") as other:
                self.assertEqual(one.read(), other.read())
        self.assertEqual({member.date_time for member in self.members}, {(2026, 1, 1, 0, 0, 0)})
        self.assertTrue(self.members[-1].filename.startswith(self.info))

    def check_inside(self, *names):
        for name in names:
            self.assertIn(f"{self.folder}/{name}", self.files)
        for name, data in self.files.items():
            self.assertTrue(name.startswith((f"{self.folder}/", self.info)), name)
            self.assertNotIn("__pycache__", name)
            if name.endswith(".py") and data:
                self.assertTrue(data.lstrip().startswith(b'"""'), f"{name} has no docstring")

    def test_what_the_files_need_of_a_machine(self):
        newest = {}
        for name, data in self.files.items():
            if is_elf(data):
                elf = ElfFile(name, data)
                self.assertIsNone(elf.runpath, name)
                for soname in elf.needed:
                    self.assertTrue(self.is_there(soname), (name, soname))
                for prefix in FLOORS:
                    version = elf.versions.get(prefix, (0,))
                    self.assertLessEqual(version, FLOORS[prefix], f"{name} needs {prefix} {version}")
                    newest[prefix] = max(version, newest.get(prefix, (0,)))
        # So low that no version was read?
        self.assertGreater(newest["GLIBC"], (2, 30))
        self.assertGreater(newest["GLIBCXX"], (3, 4, 20))
        glibc = "glibc " + ".".join(map(str, newest["GLIBC"]))
        self.assertIn(self.needs.format(glibc=glibc), self.text("METADATA"))

    def is_there(self, soname):
        """Whether a library is in the wheel; its C library is in a folder that only its own loader searches."""
        return f"{self.folder}/lib/{soname}" in self.files or f"{self.folder}/lib/glibc/{soname}" in self.files

    def test_the_pages_name_its_size(self):
        for page in PAGES:
            with open(page, encoding="utf-8") as file:
                rows = [line for line in file if f"`{os.path.basename(self.path)}`" in line
                        or f"/{os.path.basename(self.path)}`" in line]
            self.assertLessEqual(len(rows), 1, page)
            for row in rows:
                stated = float(re.search(r"\b(\d+(?:\.\d)?) MB\b", row)[1])
                # 0.1 MB or 5 %: what a reader takes from a page with one or two digits.
                self.assertAlmostEqual(os.path.getsize(self.path) / 1e6, stated, delta=max(0.1, stated / 20), msg=row)


class LibraryArchiveTest(Archive, unittest.TestCase):
    """The wheel of the package, with GCC's libstarring.so."""

    path = WHEEL
    project = "starring"
    needs = "Needs Linux on x86-64 with {glibc} or newer. "

    def is_there(self, soname):
        return is_of_machine(soname) or super().is_there(soname)

    def test_everything_is_inside(self):
        self.check_inside("__init__.py", "torch.py", "servers.py", "data.py", "models.py", "py.typed", "libstarring.so",
                          "include/starring.h", "include/starring_data.h", "layer_files/lenet5.textproto",
                          "MANIFEST.txt", "licences/libabsl20220623/copyright", "licences/zlib1g/copyright")
        self.assertNotIn(f"{self.info}/entry_points.txt", self.files)
        self.assertFalse([name for name in self.files if name.startswith(("starring/bin/", "starring/lib/libgrpc"))])

    def test_what_the_library_brings_into_a_process(self):
        library = ElfFile("libstarring.so", self.files["starring/libstarring.so"])
        self.assertEqual(library.rpath, "$ORIGIN/lib")
        queue, seen = list(library.needed), set()
        while queue:
            soname = queue.pop()
            if soname not in seen and not is_of_machine(soname):
                seen.add(soname)
                self.assertRegex(soname, make_wheel.LIBRARY_MAY_NEED)
                queue += ElfFile(soname, self.files[f"starring/lib/{soname}"]).needed
        self.assertTrue(seen)


class ProgramsArchiveTest(Archive, unittest.TestCase):
    """The wheel of the programs."""

    path = PROGRAMS_WHEEL
    project = "starring-programs"
    needs = "Needs Linux on x86-64, kernel 3.17 or newer, and no C library"

    def test_everything_is_inside(self):
        self.check_inside("__init__.py", "py.typed", "bin/launch", "bin/server", "bin/worker", "bin/mpirun",
                          "libexec/openmpi/orted", "lib/glibc/libc.so.6", "lib/libstdc++.so.6", "MANIFEST.txt",
                          "licences/libc6/copyright", "licences/libgrpc29/copyright",
                          "licences/libabsl20220623/copyright")
        for program in ("launch", "server", "worker"):
            self.assertIn(f"starring-{program} = starring_programs:{program}\n", self.text("entry_points.txt"))

    def test_a_program_starts_by_a_file_without_a_c_library(self):
        for program in ("launch", "mpirun", "orted", "server", "worker"):
            starter = self.files[f"{self.folder}/bin/{program}"]
            self.assertEqual(ElfFile(program, starter).needed, [])
            self.assertLess(len(starter), 20000)


class CommandsTest(unittest.TestCase):
    """The commands where something is missing."""

    def test_without_the_programs(self):
        with self.assertRaises(SystemExit) as caught:
            starring_programs.worker()
        self.assertRegex(str(caught.exception), "there is no .*/starring_programs/bin/worker: install")


class MakeWheelTest(unittest.TestCase):
    """Problems that must end the build of a wheel."""

    def test_a_library_with_a_foreign_library_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(PROGRAMS_WHEEL) as archive:
            server = archive.extract("starring_programs/libexec/bin/server", folder)
            with self.assertRaisesRegex(BundleError, "may clash with a library of PyTorch"):
                make_wheel.check_library(server)

    def test_a_module_outside_the_package_is_an_error(self):
        with self.assertRaisesRegex(BundleError, "has no place for it"):
            make_wheel.package_files("starring", [__file__])


class InstalledTest(unittest.TestCase):
    """Both wheels in a virtual environment, far from the tree that they were built from."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="starring_venv_")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.venv = cls.make_environment("plain")
        cls.package, = glob.glob(os.path.join(cls.venv, "lib/python3*/site-packages/starring"))
        cls.programs, = glob.glob(os.path.join(cls.venv, "lib/python3*/site-packages/starring_programs"))

    @classmethod
    def make_environment(cls, name, *flags):
        """A virtual environment with the wheels: by pip, or, without Debian's python3-venv, unpacked by hand."""
        venv = os.path.join(cls.folder, name)
        environment = {"PATH": "/usr/bin:/bin", "HOME": cls.folder}
        if importlib.util.find_spec("ensurepip") is not None:
            subprocess.run([PYTHON, "-m", "venv", *flags, venv], env=environment, check=True, timeout=SECONDS_MAX)
            subprocess.run([f"{venv}/bin/python", "-m", "pip", "--isolated", "--disable-pip-version-check", "--quiet",
                            "install", "--no-index", f"--find-links={os.path.dirname(WHEEL)}",
                            "starring[programs]"], env=environment, check=True, timeout=SECONDS_MAX)
            return venv
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", *flags, venv], env=environment, check=True,
                       timeout=SECONDS_MAX)
        packages, = glob.glob(f"{venv}/lib/python3*/site-packages")
        for wheel in (WHEEL, PROGRAMS_WHEEL):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    os.chmod(archive.extract(member, packages), member.external_attr >> 16 & 0o777)
        for program in ("launch", "server", "worker"):
            with open(f"{venv}/bin/starring-{program}", "w", encoding="utf-8") as file:
                file.write(f"#!{venv}/bin/python\nimport starring_programs\nstarring_programs.{program}()\n")
            os.chmod(file.name, 0o755)
        return venv

    def run_program(self, name, *flags, watch=None):
        code, text = run_to_end([os.path.join(self.venv, "bin", name), *flags], watch=watch)
        self.assertEqual(code, 0, text)
        return text

    def check_loaded(self, files):
        """Code comes from the package or is the machine's C and C++ library, and nothing else."""
        for file in files:
            self.assertTrue(file.startswith(self.package + "/") or is_of_machine(file), file)

    def train(self, *launch_flags):
        """Trains, checks what the processes loaded, and returns the digest of the parameters."""
        record = os.path.join(self.folder, "record.json")
        loaded = LoadedFiles(self.programs)
        self.run_program("starring-launch", *launch_flags, "--", *JOB, f"--record={record}", watch=loaded.look)
        self.assertIn("bin/worker", loaded.by_program)
        for files in loaded.by_program.values():
            self.assertTrue(all(file.startswith(self.programs + "/") for file in files), files)
        with open(record, encoding="utf-8") as file:
            return json.load(file)["parameter_sha256"], loaded.by_program

    def test_programs_become_the_commands(self):
        for program in ("launch", "server", "worker"):
            self.assertIn(f"starring {program} {VERSION}", self.run_program(f"starring-{program}", "--version"))
        code, text = run_to_end([os.path.join(self.venv, "bin/starring-worker"), "--no_such_flag"])
        self.assertEqual(code, 2, text)

    def test_a_star_and_a_ring(self):
        star, star_files = self.train("--sync=star", "--workers=2", "--servers=1")
        self.assertIn("bin/server", star_files)
        ring, ring_files = self.train("--sync=ring", "--workers=2")
        self.assertIn("openmpi/mpirun", ring_files)
        self.assertEqual(star, ring)

    def test_pip_refuses_another_machine(self):
        if importlib.util.find_spec("ensurepip") is None:
            self.skipTest("no pip for a virtual environment: install python3-venv")
        for platform, code in (("linux_x86_64", 0), ("linux_aarch64", 1), ("macosx_12_0_x86_64", 1)):
            found, text = run_to_end([f"{self.venv}/bin/python", "-m", "pip", "--isolated", "download", "--no-index",
                                      "--no-deps", f"--find-links={os.path.dirname(WHEEL)}",
                                      f"--dest={self.folder}/got", "--only-binary=:all:", f"--platform={platform}",
                                      "starring-programs"])
            self.assertEqual(found, code, text)

    def test_the_package_opens_its_own_library(self):
        code, text = run_to_end([os.path.join(self.venv, "bin/python"), "-c", (
            "import starring, starring._library\n"
            "import importlib.metadata\n"
            "starring._library.load()\n"
            "assert importlib.metadata.version('starring') == starring.__version__, starring.__version__\n"
            "print(open('/proc/self/maps').read())")])
        self.assertEqual(code, 0, text)
        ours = {line.split()[-1] for line in text.splitlines() if "starring" in line or "libabsl" in line}
        self.assertIn(f"{self.package}/libstarring.so", ours)
        self.assertTrue(any("libabsl" in path for path in ours))
        self.check_loaded(ours)

    def test_the_package_lists_its_modules(self):
        code, text = run_to_end([os.path.join(self.venv, "bin/python"), "-m", "starring", "--help"])
        self.assertEqual(code, 0, text)
        for module in ("data", "export", "layer_file", "layer_graph", "models", "pack", "servers", "torch", "weights"):
            self.assertRegex(text, rf"(?m)^(import|python3 -m) starring\.{module} +[A-Z]")

    def test_star_under_pytorch(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no torch for /usr/bin/python3: install python3-torch")
        venv = self.make_environment("with_torch", "--system-site-packages")
        # Copies, because a script's folder is the first in which Python looks for modules.
        start, example = (shutil.copy(os.path.join(EXAMPLES, name), self.folder)
                          for name in ("start.py", "starring_ddp.py"))
        code, text = run_to_end([f"{venv}/bin/python", start, "2", example], {"PATH": "/usr/bin:/bin"})
        self.assertEqual(code, 0, text)
        self.assertEqual(sorted(text.splitlines())[-1], "rank 1 step 1 gradient 1.5 w 8.5")

    def test_the_build_tree_is_elsewhere(self):
        # The other tests' comparisons would prove nothing if the environment were inside the build's folders.
        self.assertFalse(self.package.startswith(os.path.dirname(os.path.realpath(WHEEL))))
        self.assertNotIn("bazel", self.package)
        self.assertEqual(sys.executable, PYTHON)


if __name__ == "__main__":
    unittest.main()
