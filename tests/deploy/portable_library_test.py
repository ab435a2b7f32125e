"""Tests what makes the wheel for old systems, all but the real downloads and the real compiler: the rules for the
library, also for the sources as GCC compiles them, the files from elsewhere, the compiler's commands, and the wheel."""

import email
import glob
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
import zipfile
from unittest import mock

from deploy.bundle.elf_file import ElfFile
from deploy.bundle.make_bundle import BundleError, read
from deploy.wheel import build_library, downloads, make_wheel, portable_rules, portable_wheel, same_bits

GCC_LIBRARY = os.path.abspath("worker/python/libstarring.so")
SOURCES = os.path.abspath("deploy/library_sources")
PACKAGE = ["worker/python/starring/__init__.py", "worker/python/starring/_library.py"]
C_LIBRARIES = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6"]
GOOD = "#include <string.h>\nint st_open(const char* text) { return (int)strlen(text); }\n"
SECONDS_MAX = 120

# pip's download, on a system with another glibc than this one's.
PIP = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from pip._vendor.packaging import _manylinux
_manylinux._get_glibc_version = lambda: tuple(map(int, sys.argv[1].split(".")))
from pip._internal.cli.main import main
sys.exit(main(["download", "--isolated", "--disable-pip-version-check", "--no-index", "--no-deps", *sys.argv[2:]]))
"""


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(path, mode)
    return path


class InAFolder(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def compiled(self, text, *flags, name="libstarring.so"):
        """A library of this C text."""
        source = write(self.path("source.c"), text)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", self.path(name), source, *flags],
                       check=True, timeout=SECONDS_MAX)
        return self.path(name)

    def faults(self, path):
        return " | ".join(portable_rules.faults(ElfFile("libstarring.so", read(path))))


class RulesTest(InAFolder):
    """portable_rules.py."""

    def test_a_library_of_libc_alone_is_good(self):
        self.assertEqual(self.faults(self.compiled(GOOD)), "")

    def test_gccs_library_is_refused(self):
        faults = self.faults(GCC_LIBRARY)
        self.assertRegex(faults, r"needs glibc 2\.3\d, and may need 2\.28: do without .*fstat \(GLIBC_2\.33\)")
        self.assertRegex(faults, r"takes (\w+, )+\w+ and \d+ more from no library: compile the sources")
        self.assertRegex(faults, r"needs libstdc\+\+\.so\.6, .*libabsl_\w+\.so\.20220623.*: link the others")

    def test_a_symbol_that_nothing_defines(self):
        faults = self.faults(self.compiled("int lost(void);\nint st_open(void) { return lost(); }\n"))
        self.assertIn("takes lost from no library", faults)

    def test_a_symbol_of_another_library(self):
        faults = self.faults(self.compiled("const char* zlibVersion(void);\n"
                                           "int st_open(void) { return *zlibVersion(); }\n", "-lz"))
        self.assertIn("needs libz.so.1, and may need the libraries of glibc alone", faults)
        self.assertIn("takes zlibVersion from no library", faults)

    def test_exports(self):
        self.assertIn("exports other, and may", self.faults(self.compiled(GOOD + "int other(void) { return 0; }\n")))
        self.assertIn("exports nothing", self.faults(self.compiled("int x;", "-fvisibility=hidden")))

    def test_the_sources_use_nothing_newer(self):
        """With GCC, as far as the library that it builds here shows."""
        c_libraries = [ElfFile(path, read(path)) for path in C_LIBRARIES]
        imports = ElfFile(GCC_LIBRARY, read(GCC_LIBRARY)).imports
        self.assertIn("pthread_sigmask", {name for name, _ in imports})
        self.assertEqual(portable_rules.late_functions(imports, c_libraries), [])
        late = self.compiled("const char* strerrorname_np(int);\nint pthread_create();\n"
                             "int st_open(void) { pthread_create(); return *strerrorname_np(1); }\n", name="late.so")
        # glibc 2.28 has pthread_create, too, under an older version.
        self.assertEqual(portable_rules.late_functions(ElfFile(late, read(late)).imports, c_libraries),
                         ["strerrorname_np (GLIBC_2.32)"])


class DownloadsTest(InAFolder):
    """downloads.py, with an archive in a folder instead of Debian's."""

    def file(self, name, data):
        path = write(self.path(f"archive/{name}"), data)
        return downloads.File(name, downloads.sha256_of(path))

    def fetch(self, file):
        os.makedirs(self.path("cache"), exist_ok=True)
        return downloads.fetch(file, self.path("cache"), "file://" + self.path("archive"))

    def test_a_file_is_fetched_once(self):
        file = self.file("a.tar", "one")
        path = self.fetch(file)
        self.assertEqual(read(path), b"one")
        os.remove(self.path("archive/a.tar"))
        self.assertEqual(self.fetch(file), path)
        self.assertEqual(os.listdir(self.path("cache")), ["a.tar"])

    def test_another_file_of_the_name_is_refused(self):
        file = self.file("a.tar", "one")
        write(self.path("archive/a.tar"), "two")
        with self.assertRaisesRegex(downloads.DownloadError, f"has the SHA-256 .*, wanted is {file.sha256}: delete it"):
            self.fetch(file)

    def test_without_a_network(self):
        with self.assertRaisesRegex(downloads.DownloadError, "cannot fetch file://.*/a.tar: .* or put the file into "):
            self.fetch(downloads.File("a.tar", ""))

    def source(self, patch):
        for name, files in (("s.tar.gz", {"s-1/s.c": "old\n", "other/x": ""}),
                            ("s.debian.tar.xz", {"debian/patches/series": "p.diff\n", "debian/patches/p.diff": patch})):
            with tarfile.open(self.path(name), "w:" + name.rpartition(".")[2]) as archive:
                for member, text in files.items():
                    info = tarfile.TarInfo(member)
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text.encode()))
        archive, patches = (downloads.File(name, downloads.sha256_of(self.path(name)))
                            for name in ("s.tar.gz", "s.debian.tar.xz"))
        return downloads.Source("s", "1", archive, "s-1", patches, "LICENSE")

    def test_debians_patches_are_applied(self):
        source = self.source("--- a/s.c\n+++ b/s.c\n@@ -1 +1 @@\n-old\n+new\n")
        downloads.unpack(source, self.folder, self.path("build"))
        self.assertEqual(read(self.path("build/s/s.c")), b"new\n")
        self.assertEqual(os.listdir(self.path("build")), ["s"])

    def test_a_patch_that_does_not_fit(self):
        source = self.source("--- a/s.c\n+++ b/s.c\n@@ -1 +1 @@\n-else\n+new\n")
        with self.assertRaisesRegex(downloads.DownloadError, "Debian's patch p.diff does not fit s.tar.gz"):
            downloads.unpack(source, self.folder, self.path("build"))

    def install(self, pip):
        """Installs the programs by a python that makes a virtual environment whose python is this script."""
        write(self.path("pip.sh"), f"#!/bin/sh\n{pip}\n", 0o755)
        python = write(self.path("python"), f'#!/bin/sh\nmkdir -p "$3/bin" && cp {self.path("pip.sh")} '
                                            '"$3/bin/python"\n', 0o755)
        with mock.patch.object(sys, "executable", python):
            return downloads.install_programs(self.path("cache"))

    def test_pip_without_a_network(self):
        os.mkdir(self.path("cache"))
        with self.assertRaisesRegex(downloads.DownloadError,
                                    "-m pip install failed: no such host: python3-venv must be installed, and PyPI "
                                    "reached, or the wheels of ziglang=="):
            self.install("echo trying again; echo no such host; exit 1")

    def test_programs_are_installed_once(self):
        os.mkdir(self.path("cache"))
        self.install(f'echo "$@" >> {self.path("calls")}; cat {self.path("cache")}/requirements.txt >> '
                     f'{self.path("calls")}')
        calls = read(self.path("calls")).decode()
        self.assertIn("--require-hashes", calls)
        for name, digest in downloads.PROGRAMS.items():
            self.assertIn(f"{name} --hash=sha256:{digest}", calls)
        self.assertEqual(self.install("exit 1"), self.path("cache/programs/bin"))


class BuildTest(InAFolder):
    """build_library.py, with a script instead of the compiler."""

    def zig(self, script):
        write(self.path("python"), f"#!/bin/sh\n{script}\n", 0o755)
        return build_library.Zig(self.folder, self.folder)

    def test_the_librarys_own_sources(self):
        own = build_library.own_sources(read(SOURCES).decode())
        for name in ("common/network/dial.cc", "common/base/limits.h", "worker/python/starring.h",
                     "worker/python/starring.lds", "worker/python/starring_c.cc", "worker/data/loader.cc"):
            self.assertIn(name, own)
        self.assertEqual([name for name in own if not name.startswith(("common/", "worker/"))], [])
        self.assertEqual(len([name for name in own if name.endswith(".lds")]), 1)

    def test_files_that_the_build_makes_have_their_place(self):
        write(self.path("made/own/image.cc"), "made")
        build_library.stage_own(["own/image.cc"], self.path("made"), self.path("build"))
        self.assertEqual(read(self.path("build/own/image.cc")), b"made")

    def build(self, zig):
        for name in ("own/a.cc", "own/a.lds", "abseil/absl/base/b.cc", "abseil/absl/base/b_test.cc",
                     "abseil/absl/flags/f.cc", "zlib/z.c", "zlib/contrib/no.c"):
            write(self.path(name), "")
        return build_library.build(zig, ["own/a.cc", "own/a.lds"], self.folder, jobs=2)

    def test_commands(self):
        path = self.build(self.zig('echo "$@" >> commands'))
        self.assertEqual(path, self.path("libstarring.so"))
        commands = read(self.path("commands")).decode().splitlines()
        self.assertEqual(sorted(re.findall(r" -c (\S+) -o ", "\n".join(commands))),
                         ["abseil/absl/base/b.cc", "own/a.cc", "zlib/z.c"])
        for command in commands:
            self.assertIn("-target x86_64-linux-gnu.2.28", command)
        for command in commands[:-1]:
            self.assertIn(" -O3 ", command)
            self.assertIn(" -ffp-contract=off ", command)
        self.assertIn("--version-script=own/a.lds", commands[-1])
        for name in ("abseil/absl/base/b.cc.o", "own/a.cc.o", "zlib/z.c.o"):
            self.assertIn(name, commands[-1])

    def test_a_compiler_that_fails_is_named_with_its_words(self):
        with self.assertRaisesRegex(build_library.BuildError, "(?s)c.. .* failed:\nno such header"):
            self.build(self.zig("echo no such header; exit 1"))


class WheelTest(InAFolder):
    """portable_wheel.py, with a small library."""

    def bundle(self, library):
        return make_wheel.library_bundle(library, ["worker/model/models/lenet5.textproto"],
                                         ["worker/python/starring.h"])

    def make(self, bundle, platform=portable_rules.PLATFORM, origins=()):
        path = self.path(f"starring-0.1-py3-none-{platform}.whl")
        make_wheel.make(make_wheel.LIBRARY, bundle, PACKAGE, "LICENSE", path, origins)
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def with_inside(self, bundle):
        for source in downloads.SOURCES:
            write(self.path(f"build/{source.name}/{source.licence}"), f"licence of {source.name}")
        for name, path in portable_wheel.RUNTIMES.items():
            write(self.path(f"zig/{path}"), f"licence of {name}")
        return self.make(bundle, origins=portable_wheel.add_inside(bundle, self.path("build"), self.path("zig")))

    def test_contents(self):
        files = self.with_inside(self.bundle(self.compiled(GOOD)))
        for name in ("__init__.py", "_library.py", "py.typed", "libstarring.so", "include/starring.h",
                     "layer_files/lenet5.textproto"):
            self.assertIn(f"starring/{name}", files)
        self.assertFalse([name for name in files if name.startswith(("starring/lib/", "starring/bin/"))])
        for name in ("abseil", "zlib", "libcxx", "libcxxabi", "libunwind", "zig", "glibc"):
            texts = [text for path, text in files.items() if path.startswith(f"starring/licences/{name}/")]
            self.assertEqual(texts, [f"licence of {name}".encode()])
        manifest = files["starring/MANIFEST.txt"].decode()
        for text in ("abseil 20220623.1-1+deb12u2", "zlib 1:1.2.13.dfsg-1", "ziglang==", "libc++",
                     downloads.SOURCES[0].archive.sha256):
            self.assertIn(text, manifest)
        wheel = email.message_from_bytes(files["starring-0.1.dist-info/WHEEL"])
        self.assertEqual(wheel["Tag"], "py3-none-manylinux_2_28_x86_64")
        metadata = email.message_from_bytes(files["starring-0.1.dist-info/METADATA"])
        self.assertEqual(metadata.get_all("Provides-Extra"), ["torch", "pack", "programs"])
        self.assertIn('starring-programs==0.1; extra == "programs"', metadata.get_all("Requires-Dist"))
        # The tag's, also if the library needs less.
        self.assertIn("glibc 2.28 or newer", metadata.get_payload())

    def test_gccs_library_gets_no_such_wheel(self):
        with self.assertRaisesRegex(BundleError, r"the files need glibc 2\.3\d, and manylinux_2_28_x86_64 promises"):
            self.make(self.bundle(GCC_LIBRARY))
        self.assertEqual(os.listdir(self.folder), [])
        self.assertIn("starring/lib/libz.so.1", self.make(self.bundle(GCC_LIBRARY), "linux_x86_64"))

    def test_a_library_that_breaks_a_rule_gets_no_wheel(self):
        lost = self.compiled("int lost(void);\nint st_open(void) { return lost(); }\n")
        with self.assertRaisesRegex(BundleError, "takes lost from no library"):
            self.make(self.bundle(lost))

    def test_a_platform_that_pip_does_not_know(self):
        with self.assertRaisesRegex(BundleError, "the platform any is neither linux_x86_64 nor manylinux_2_X_x86_64"):
            self.make(self.bundle(self.compiled(GOOD)), "any")

    def test_pip_refuses_an_older_system(self):
        pip = glob.glob("/usr/share/python-wheels/pip-*.whl")
        if not pip:
            self.skipTest("no pip for /usr/bin/python3: install python3-venv")
        self.make(self.bundle(self.compiled(GOOD)))
        for glibc, good in (("2.27", False), ("2.28", True)):
            done = subprocess.run([sys.executable, "-c", PIP, pip[0], glibc, f"--find-links={self.folder}",
                                   f"--dest={self.path(glibc)}", "starring"], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False, timeout=SECONDS_MAX)
            self.assertEqual(done.returncode == 0, good, done.stdout)
            self.assertEqual("No matching distribution found for starring" in done.stdout, not good, done.stdout)

    def test_auditwheels_verdict(self):
        for verdict, good in (("manylinux_2_27_x86_64", True), ("manylinux_2_28_x86_64", True),
                              ("manylinux_2_34_x86_64", False), ("linux_x86_64", False)):
            # auditwheel breaks its lines anywhere.
            write(self.path("verdict"), f"w.whl is consistent with the following platform\ntag: \"{verdict}\".\n")
            write(self.path("auditwheel"), f"#!/bin/sh\ncat {self.path('verdict')}\n", 0o755)
            with self.subTest(verdict), mock.patch.object(portable_wheel, "say"):
                if good:
                    portable_wheel.audit(self.folder, "w.whl")
                else:
                    with self.assertRaisesRegex(BundleError, "auditwheel does not find w.whl good"):
                        portable_wheel.audit(self.folder, "w.whl")

    def options(self):
        return types.SimpleNamespace(
            output=self.path("out"), cache=self.path("cache"), jobs=1, version="0.1", sources=SOURCES,
            generated=["worker/python/starring.h"], gcc_library=GCC_LIBRARY, package=PACKAGE, models=[],
            headers=[], licence="LICENSE")

    def test_the_whole_way(self):
        """From a list of sources to a wheel, or none if the library's bits differ."""
        library = self.compiled(GOOD)
        with mock.patch.multiple(portable_wheel.downloads, install_programs=mock.DEFAULT), \
                mock.patch.multiple(portable_wheel.build_library, stage=mock.DEFAULT, build=mock.DEFAULT,
                                    Zig=mock.DEFAULT) as fakes, \
                mock.patch.multiple(portable_wheel, add_inside=mock.DEFAULT, audit=mock.DEFAULT, say=mock.DEFAULT), \
                mock.patch.object(same_bits, "digests") as digests:
            fakes["stage"].return_value = self.folder
            fakes["build"].return_value = library
            portable_wheel.add_inside.return_value = []
            digests.side_effect = [{"star": "1" * 64}, {"star": "2" * 64}]
            with self.assertRaisesRegex(BundleError, "has other bits than .*, which GCC built: star: 1{12}, not 2{12}"):
                portable_wheel.make(self.options())
            self.assertEqual(os.listdir(self.path("out")), [])
            digests.side_effect = [{"star": "1" * 64}] * 2
            wheel = portable_wheel.make(self.options())
        self.assertEqual(os.path.basename(wheel), "starring-0.1-py3-none-manylinux_2_28_x86_64.whl")
        self.assertTrue(zipfile.is_zipfile(wheel))
        self.assertEqual(fakes["build"].call_args[0][1],
                         build_library.own_sources(read(SOURCES).decode()) + self.options().generated)
        self.assertTrue(os.path.exists(self.path("worker/python/starring.h")))


if __name__ == "__main__":
    unittest.main()
