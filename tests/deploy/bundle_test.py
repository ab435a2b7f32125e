"""Tests the unpacked bundle: it trains with an empty environment, and with only its own libraries and glibc."""

import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import unittest

from deploy.bundle import make_bundle
from deploy.bundle.elf_file import ElfError, ElfFile, is_elf
from loaded_files import LoadedFiles

ARCHIVE = os.path.abspath("deploy/starring-bundle.tar.gz")
LOADER = "/lib64/ld-linux-x86-64.so.2"
SECONDS_MAX = 240  # for all waits that a loaded machine may delay
JOB = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--global_batch=33",
       "--epochs=2", "--progress=plain", "--share_gpus"]
STAR = ["--sync=star", "--workers=2", "--servers=2"]
RING = ["--sync=ring", "--workers=2"]
# Without these mpirun refuses to run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

# Replaces ssh for mpirun: drops options and the host's name, and runs the rest with an empty environment, like a login.
REMOTE_SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec env -i PATH=/usr/bin:/bin sh -c "$*"
"""

# $1: a folder for the new root, $2: the archive, $3: a folder for results. Then libraries up to --, then a command in
# the unpacked archive. The new root has only the loader, glibc, /dev, /proc and the bundle.
BARE_MACHINE = r"""#!/bin/sh
root=$1 archive=$2 results=$3
shift 3
mount -t tmpfs none "$root"
mkdir "$root/lib64" "$root/dev" "$root/proc" "$root/tmp" "$root/bare box"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
while [ "$1" != -- ]; do
  mkdir -p "$root${1%/*}"
  cp -L "$1" "$root$1"
  shift
done
shift
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount --rbind "$results" "$root/tmp"
mount -t tmpfs none "$root/bare box"
tar -C "$root/bare box" -xzf "$archive"
mount -o remount,ro "$root/bare box"
program=$1
shift
exec env -i "$(command -v chroot || echo /usr/sbin/chroot)" "$root" "/bare box/starring/$program" "$@"
"""


def is_glibc(path):
    return make_bundle.GLIBC.fullmatch(os.path.basename(path)) is not None


class BundleTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.above = tempfile.mkdtemp(prefix="a folder with spaces ")
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(cls.above)
        cls.bundle = os.path.join(cls.above, make_bundle.TOP)
        for folder, _, names in os.walk(cls.bundle):
            for name in names + ["."]:
                path = os.path.join(folder, name)
                os.chmod(path, os.stat(path).st_mode & ~0o222)

    @classmethod
    def tearDownClass(cls):
        for folder, _, _ in os.walk(cls.bundle):
            os.chmod(folder, 0o755)
        shutil.rmtree(cls.above)

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.bundle, name)

    def run_to_end(self, command, environment=None, watch=None):
        """Runs a command in /, with only `environment`. It must succeed. Returns standard output and error."""
        with open(os.path.join(self.folder, "output"), "w+b") as output:
            process = subprocess.Popen(command, env=environment or {}, cwd="/", stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT)
            end = time.monotonic() + SECONDS_MAX
            while process.poll() is None and time.monotonic() < end:
                if watch is not None:
                    watch()
                time.sleep(0.01)  # the period of looks at the processes
            late = process.poll() is None
            process.kill()
            process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        self.assertFalse(late, f"no end after {SECONDS_MAX} s:\n{text}")
        self.assertEqual(process.returncode, 0, text)
        return text

    def train(self, launch_flags, environment=None, watch=None, command=None):
        """Trains, and returns the digest of the parameters at the end."""
        record = os.path.join(self.folder, "record.json")
        self.run_to_end(command or [self.path("bin/launch"), *launch_flags, "--", *JOB, f"--record={record}"],
                        environment, watch)
        with open(record, encoding="utf-8") as file:
            return json.load(file)["parameter_sha256"]

    # The archive.

    def test_the_same_files_give_the_same_bytes(self):
        files = {}
        with tarfile.open(ARCHIVE) as archive:
            for member in archive:
                self.assertTrue(member.isfile() or member.isdir(), member.name)
                if member.isfile():
                    name = member.name[len(make_bundle.TOP) + 1:]
                    files[name] = (archive.extractfile(member).read(), member.mode)
        again = os.path.join(self.folder, "again.tar.gz")
        make_bundle.write_archive(dict(reversed(files.items())), again)
        with open(ARCHIVE, "rb") as one, open(again, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_modes_and_texts(self):
        for name, mode in (("bin/launch", 0o555), ("bin/mpirun", 0o555), ("bin/get_data.sh", 0o555),
                           ("libexec/orted", 0o555), ("lib/libmpi.so.40", 0o444), ("models/lenet5.textproto", 0o444),
                           ("LICENSE", 0o444), ("share/openmpi/help-orterun.txt", 0o444), ("bin", 0o555)):
            self.assertEqual(os.stat(self.path(name)).st_mode & 0o777, mode, name)
        with open(self.path("README.txt"), encoding="utf-8") as file:
            readme = file.read()
        self.assertNotIn("@", readme)
        self.assertRegex(readme, r"glibc 2\.\d+ or newer")

    def test_everything_has_a_licence(self):
        with open(self.path("MANIFEST.txt"), encoding="utf-8") as file:
            lines = file.read().split("\n")
        owners, listed = [], set()
        for line in lines[:next(i for i, line in enumerate(lines) if line.startswith("Taken from the machine"))]:
            if line.startswith("  "):
                listed.add(line.strip())
            elif " (Debian source " in line:
                owners.append(line.split(" ")[0])
        for package in ("libgrpc29", "libopenmpi3", "libdnnl2", "libstdc++6", "zlib1g"):
            self.assertIn(package, owners)
        for owner in owners:
            self.assertGreater(os.path.getsize(self.path(f"licences/{owner}/copyright")), 100, owner)
        self.assertTrue(os.path.exists(self.path("licences/common-licenses/LGPL-2.1")))
        found = {os.path.relpath(os.path.join(folder, name), self.bundle)
                 for folder, _, names in os.walk(self.bundle) for name in names}
        self.assertEqual({name for name in found if not name.startswith("licences/")}, listed)

    # Loaded files.

    def test_every_library_is_in_the_bundle_or_of_glibc(self):
        programs = 0
        for folder, _, names in os.walk(self.bundle):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    data = file.read()
                if not is_elf(data):
                    continue
                elf = ElfFile(path, data)
                self.assertIsNone(elf.runpath, path)
                for soname in elf.needed:
                    self.assertTrue(is_glibc(soname) or os.path.exists(self.path(f"lib/{soname}")), (path, soname))
                if os.access(path, os.X_OK) and os.path.relpath(path, self.bundle).split("/")[0] != "lib":
                    programs += 1
                    for line in self.run_to_end([LOADER, "--list", path]).splitlines():
                        library = line.partition(" => ")[2].rpartition(" (")[0] or line.split(" (")[0].strip()
                        self.assertTrue(library.startswith((self.bundle, "linux-vdso")) or is_glibc(library),
                                        f"{path}: {line}")
        self.assertGreater(programs, 10)

    def test_star_and_ring_with_an_empty_environment(self):
        loaded = LoadedFiles(self.bundle)
        star = self.train(STAR, watch=loaded.look)
        ring = self.train(RING, watch=loaded.look)
        mapped = loaded.by_program
        self.assertEqual(star, ring)
        for program in ("bin/launch", "bin/worker", "bin/server", "libexec/mpirun"):
            self.assertIn(program, mapped)
        self.assertIn(self.path("lib/openmpi/mca_pml_ob1.so"), mapped["bin/worker"])
        for program, files in mapped.items():
            for file in files:
                self.assertTrue(file.startswith(self.bundle) or is_glibc(file), f"{program} maps {file}")

    def test_an_environment_for_another_open_mpi_changes_nothing(self):
        foreign = os.path.join(self.folder, "foreign")
        os.makedirs(os.path.join(foreign, "bin"))
        os.makedirs(os.path.join(foreign, "lib"))
        for name in ("libmpi.so.40", "libopen-rte.so.40", "libopen-pal.so.40", "libpmix.so.2", "libz.so.1"):
            with open(os.path.join(foreign, "lib", name), "w", encoding="utf-8") as file:
                file.write("no library\n")
        mpirun = os.path.join(foreign, "bin/mpirun")
        with open(mpirun, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit 77\n")
        os.chmod(mpirun, 0o755)
        environment = {"PATH": foreign + "/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": foreign + "/lib",
                       "OPAL_PREFIX": foreign, "PMIX_PREFIX": foreign}
        self.assertEqual(self.train(RING, environment), self.train(RING))

    # Open MPI.

    def test_mpirun_by_hand(self):
        record = os.path.join(self.folder, "record.json")
        by_hand = [self.path("bin/mpirun"), "--oversubscribe", "-np", "2", self.path("bin/worker"), *JOB,
                   f"--record={record}"]
        self.assertEqual(self.train([], AS_ROOT, command=by_hand), self.train(RING))

    def test_mpirun_through_a_link(self):
        link = os.path.join(self.folder, "mpirun")
        os.symlink(self.path("bin/mpirun"), link)
        self.run_to_end([link, "--oversubscribe", "-np", "2", self.path("bench/ring_bench"), "--bytes=4096"], AS_ROOT)

    def test_without_mpirun(self):
        # As under srun, where no mpirun tells Open MPI its folder.
        self.assertIn("library", self.run_to_end([self.path("bench/ring_bench"), "--bytes=4096"], AS_ROOT))

    def test_mpirun_speaks_through_its_help_texts(self):
        self.assertIn("Usage: mpirun", self.run_to_end([self.path("bin/mpirun"), "--help"], AS_ROOT))

    def test_mpirun_finds_orted_on_another_node(self):
        agent = os.path.join(self.folder, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(REMOTE_SHELL)
        os.chmod(agent, 0o755)
        # Open MPI does not quote the path in its command for the other node's shell, so the path must not have spaces.
        above = os.path.join(self.folder, "no_spaces")
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(above)
        bundle = os.path.join(above, make_bundle.TOP)
        text = self.run_to_end(
            [bundle + "/bin/mpirun", "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "lo", "--host",
             "other:2", "-np", "2", bundle + "/bench/ring_bench", "--bytes=4096"],
            {**AS_ROOT, "PATH": "/usr/bin:/bin"})
        self.assertIn("library", text)

    def test_without_ssh_other_nodes_are_not_replaced_by_this_one(self):
        agent, called = os.path.join(self.folder, "agent"), os.path.join(self.folder, "called")
        with open(agent, "w") as file:
            file.write(f"#!/bin/sh\n: >{called}\nexit 1\n")
        os.chmod(agent, 0o755)
        mpirun, environment = [self.path("bin/mpirun")], {**AS_ROOT, "PATH": "/nowhere"}
        nodes = ["--mca", "rmaps_base_oversubscribe", "1", "--host", socket.gethostname() + ":1,other:1", "-np", "2"]
        for flags in (nodes, ["--mca", "plm_rsh_agent", agent, *nodes]):
            done = subprocess.run([*mpirun, *flags, "/bin/echo", "ran here"], env=environment, cwd="/", text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, check=False)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertNotIn("ran here", done.stdout)
        self.assertTrue(os.path.exists(called))
        here = self.run_to_end([*mpirun, "--host", "localhost:1", "/bin/echo", "ran here"], environment)
        self.assertIn("ran here", here)

    # A machine with nothing installed.

    def test_on_a_bare_machine(self):
        namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
        if subprocess.run([*namespaces, "mount", "-t", "tmpfs", "none", self.folder], check=False,
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no namespaces without root on this machine: only the mapped files were checked")
        root = os.path.join(self.folder, "root")
        results = os.path.join(self.folder, "results")
        os.mkdir(root)
        os.mkdir(results)
        with open("/proc/self/maps", encoding="utf-8") as file:
            libc = next(line.split()[-1] for line in file if "/libc.so.6" in line)
        glibc = [os.path.join(os.path.dirname(libc), name) for name in os.listdir(os.path.dirname(libc))
                 if is_glibc(name)]
        digests = []
        for flags in (STAR, RING):
            self.run_to_end([*namespaces, "sh", "-ec", BARE_MACHINE, "sh", root, ARCHIVE, results, *glibc, "--",
                             "bin/launch", *flags, "--", *JOB, "--record=/tmp/record.json"],
                            {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
            with open(os.path.join(results, "record.json"), encoding="utf-8") as file:
                digests.append(json.load(file)["parameter_sha256"])
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(digests[0], self.train(STAR))


class MakeBundleTest(unittest.TestCase):
    """Problems that must end the build of a bundle."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        with tarfile.open(ARCHIVE) as archive:
            self.server = archive.extractfile(make_bundle.TOP + "/bin/server").read()
            self.mpirun = archive.extractfile(make_bundle.TOP + "/libexec/mpirun").read()

    def bundle_with(self, data):
        path = os.path.join(self.folder, "program")
        with open(path, "wb") as file:
            file.write(data)
        bundle = make_bundle.Bundle(make_bundle.LibraryFinder())
        bundle.add_program("bin", path)
        bundle.check()
        return bundle

    def test_takes_along_what_a_program_needs(self):
        self.assertIn("lib/libgrpc.so.29", self.bundle_with(self.server).files)

    def test_a_missing_library_is_an_error(self):
        with self.assertRaisesRegex(make_bundle.BundleError, r"needs libgrpc\.so\.99, which is nowhere"):
            self.bundle_with(self.server.replace(b"\0libgrpc.so.29\0", b"\0libgrpc.so.99\0"))

    def test_a_program_that_would_not_find_its_libraries_is_an_error(self):
        with self.assertRaisesRegex(make_bundle.BundleError, "build it with starring_cc_binary"):
            self.bundle_with(self.server.replace(b"\0$ORIGIN/../lib\0", b"\0$ORIGIN/../bil\0"))

    def test_two_files_of_one_name_are_an_error(self):
        bundle = self.bundle_with(self.server)
        with self.assertRaisesRegex(make_bundle.BundleError, "bin/program"):
            bundle.add("bin/program", b"another")

    def test_a_file_without_a_licence_is_an_error(self):
        with self.assertRaisesRegex(make_bundle.BundleError, "its licence is unknown"):
            make_bundle.licence_outside_packages(os.path.join(self.folder, "lib.so"))

    def test_cublas_is_left_to_the_machine(self):
        bundle = self.bundle_with(self.server.replace(b"\0libgrpc++.so.1.51\0", b"\0libcublas.so.13\0\0\0"))
        self.assertEqual(bundle.from_machine, {"libcublas.so.13"})
        self.assertNotIn("lib/libcublas.so.13", bundle.files)

    def test_a_search_path_is_written_over_the_old_one(self):
        elf = ElfFile("mpirun", self.mpirun)
        self.assertEqual((elf.rpath, elf.runpath), ("$ORIGIN/../lib", None))
        self.assertEqual(ElfFile("mpirun", elf.with_rpath("$ORIGIN")).rpath, "$ORIGIN")
        with self.assertRaisesRegex(ElfError, "does not fit"):
            elf.with_rpath("$ORIGIN/../../lib")
        with self.assertRaisesRegex(ElfError, "no 64-bit"):
            ElfFile("text", b"#!/bin/sh")


if __name__ == "__main__":
    unittest.main()
