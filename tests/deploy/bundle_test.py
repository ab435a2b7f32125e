"""Tests the unpacked bundle: it trains with an empty environment, and where nothing but the kernel is the machine's."""

import json
import os
import re
import shlex
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
MACHINE_LOADER = "/lib64/ld-linux-x86-64.so.2"
SECONDS_MAX = 240  # for all waits that a loaded machine may delay
JOB = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--global_batch=33",
       "--epochs=2", "--progress=plain", "--share_gpus", "--checkpoint_dir=none"]
STAR = ["--sync=star", "--workers=2", "--servers=2"]
RING = ["--sync=ring", "--workers=2"]
# Without these mpirun refuses to run as root.
PROGRAMS = ("bin/launch", "bin/worker", "bin/server", "openmpi/mpirun")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

# Replaces ssh for mpirun: drops options and the host's name, and runs the rest with an empty environment, like a login.
REMOTE_SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec env -i PATH=/usr/bin:/bin sh -c "$*"
"""

# $1: a folder for the new root, $2: the bundle, $3: a folder for results, $4: a script, in which `bare PROGRAM
# ARGUMENTS` runs a program of the bundle there. The new root has /dev, /proc and the bundle, and with $5 the files of
# that folder: no loader and no C library.
BARE_MACHINE = r"""#!/bin/sh
root=$1 bundle=$2 results=$3 jobs=$4
mount -t tmpfs none "$root"
if [ $# = 5 ]; then cp -a "$5/." "$root"; fi
mkdir "$root/dev" "$root/proc" "$root/tmp" "$root/bare box" "$root/bare box/starring"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount --rbind "$results" "$root/tmp"
mount --bind "$bundle" "$root/bare box/starring"
mount -o remount,bind,ro "$root/bare box/starring"
chroot=$(command -v chroot || echo /usr/sbin/chroot)
bare() {
  program=$1
  shift
  env -i "${variable:-A=}" "$chroot" "$root" "/bare box/starring/$program" "$@"
}
eval "$jobs"
"""

# Answers each question for an address with 127.0.0.1, at port 53 of a network that has no other host.
NAME_SERVER = """
import socket
import fcntl
import struct
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(server, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
server.bind(("127.0.0.1", 53))
print("ready", flush=True)
while True:
    question, client = server.recvfrom(512)
    end = question.index(b"\\0", 12) + 5
    is_address = question[end - 4:end - 2] == b"\\0\\1"
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4\\x7f\\0\\0\\1" if is_address else b""
    counts = b"\\0\\1" + (b"\\0\\1" if is_address else b"\\0\\0") + b"\\0\\0\\0\\0"
    server.sendto(question[:2] + b"\\x81\\x80" + counts + question[12:end] + answer, client)
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

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

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
                self.assertTrue(member.isfile() or member.isdir() or member.islnk(), member.name)
                name = member.name[len(make_bundle.TOP) + 1:]
                if member.islnk():  # reading it would unpack the archive again from its beginning
                    files[name] = files[member.linkname[len(make_bundle.TOP) + 1:]]
                elif member.isfile():
                    files[name] = (archive.extractfile(member).read(), member.mode)
        again = os.path.join(self.folder, "again.tar.gz")
        make_bundle.write_archive(dict(reversed(files.items())), again)
        with open(ARCHIVE, "rb") as one, open(again, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_modes_and_texts(self):
        for name, mode in (("bin/launch", 0o555), ("bin/mpirun", 0o555), ("bin/get_data.sh", 0o555),
                           ("libexec/openmpi/orted", 0o555), ("libexec/loader/bin/launch", 0o555),
                           ("lib/glibc/libc.so.6", 0o444), ("lib/libmpi.so.40", 0o444),
                           ("models/lenet5.textproto", 0o444),
                           ("LICENSE", 0o444), ("share/openmpi/help-orterun.txt", 0o444), ("bin", 0o555)):
            self.assertEqual(os.stat(self.path(name)).st_mode & 0o777, mode, name)
        with open(self.path("README.txt"), encoding="utf-8") as file:
            readme = file.read()
        self.assertNotIn("@", readme)
        self.assertRegex(readme, r"this bundle's glibc 2\.\d+ ")
        self.assertNotIn("or newer, with glibc", readme)

    def test_the_page_names_its_size(self):
        if not os.path.exists(self.path("bench/gpu_wait_spike")):
            self.skipTest("built without the parts for GPUs, whose size the page does not name")
        with open("deploy/README.md", encoding="utf-8") as file:
            stated = re.search(r"starring-bundle\.tar\.gz` \((\d+) MB, (\d+) MB unpacked", file.read())
        # By number, because a file may have several names. The bars are 5 %, so that a page with two digits stays true.
        sizes = {stat.st_ino: stat.st_size for folder, _, names in os.walk(self.bundle)
                 for stat in (os.stat(os.path.join(folder, name)) for name in names)}
        self.assertAlmostEqual(os.path.getsize(ARCHIVE) / 1e6, int(stated[1]), delta=2)
        self.assertAlmostEqual(sum(sizes.values()) / 1e6, int(stated[2]), delta=6)

    def test_everything_has_a_licence(self):
        with open(self.path("MANIFEST.txt"), encoding="utf-8") as file:
            lines = file.read().split("\n")
        owners, listed = [], set()
        for line in lines[:next(i for i, line in enumerate(lines) if line.startswith("Taken from the machine"))]:
            if line.startswith("  "):
                listed.add(line.strip())
            elif " (Debian source " in line:
                owners.append(line.split(" ")[0])
        for package in ("libc6", "libgrpc29", "libopenmpi3", "libdnnl2", "libstdc++6", "zlib1g"):
            self.assertIn(package, owners)
        for owner in owners:
            self.assertGreater(os.path.getsize(self.path(f"licences/{owner}/copyright")), 100, owner)
        self.assertTrue(os.path.exists(self.path("licences/common-licenses/LGPL-2.1")))
        found = {os.path.relpath(os.path.join(folder, name), self.bundle)
                 for folder, _, names in os.walk(self.bundle) for name in names}
        self.assertEqual({name for name in found if not name.startswith("licences/")}, listed)

    # Loaded files.

    def test_every_library_is_in_the_bundle(self):
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
                    place = "lib/glibc" if is_glibc(soname) else "lib"
                    self.assertTrue(os.path.exists(self.path(f"{place}/{soname}")), (path, soname))
                place = os.path.relpath(path, self.path("libexec"))
                if not place.startswith(("..", "loader/")):
                    programs += 1
                    self.assertEqual(ElfFile("starter", self.read(place)).needed, [])
                    command = [self.path(f"libexec/loader/{place}"), "--library-path", self.path("lib/glibc"), "--list"]
                    for line in self.run_to_end([*command, path]).splitlines():
                        library = line.partition(" => ")[2].rpartition(" (")[0] or line.split(" (")[0].strip()
                        self.assertTrue(library.startswith((self.bundle, "linux-vdso")), f"{path}: {line}")
        self.assertGreater(programs, 10)

    def test_star_and_ring_with_an_empty_environment(self):
        loaded = LoadedFiles(self.bundle)
        star = self.train(STAR, watch=loaded.look)
        ring = self.train(RING, watch=loaded.look)
        mapped = loaded.by_program
        self.assertEqual(star, ring)
        for program in PROGRAMS:
            self.assertIn(program, mapped)
        self.assertIn(self.path("lib/openmpi/mca_pml_ob1.so"), mapped["bin/worker"])
        for program, files in mapped.items():
            self.assertTrue(all(file.startswith(self.bundle) for file in files), f"{program} maps {files}")
            self.assertEqual(loaded.names[program], {os.path.basename(program)})

    # The C library.

    def test_the_flag_decides_for_all_that_a_program_starts(self):
        loaded = LoadedFiles(self.bundle)
        machine = self.train(["--libc=machine", *RING], watch=loaded.look)
        self.assertEqual(machine, self.train(RING, {"STARRING_LIBC": "own"}))
        for program in ("bin/launch", "bin/worker", "openmpi/mpirun"):
            libc = {file for file in loaded.by_program[program] if os.path.basename(file) == "libc.so.6"}
            self.assertEqual({file.startswith(self.bundle) for file in libc}, {False}, program)
            self.assertEqual(loaded.names[program], {os.path.basename(program)})

    def test_a_foreign_c_library_of_the_user_changes_nothing(self):
        foreign = os.path.join(self.folder, "foreign")
        os.makedirs(foreign)
        for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libresolv.so.2"):
            with open(os.path.join(foreign, name), "w", encoding="utf-8") as file:
                file.write("no library\n")
        text = self.run_to_end([self.path("bin/worker"), "--libc=own", "--version"], {"LD_LIBRARY_PATH": foreign})
        self.assertRegex(text, r"^starring worker \d")
        # The user's folders still count: drivers are found there.
        shutil.copy(os.path.join(self.bundle, "lib/libz.so.1"), os.path.join(foreign, "libdriver.so.1"))
        text = self.run_to_end([self.path("bin/worker"), "--libc=own", "--version"],
                               {"LD_LIBRARY_PATH": foreign, "LD_PRELOAD": "libdriver.so.1"})
        self.assertRegex(text, r"^starring worker \d")

    def test_a_wrong_choice_is_a_sentence(self):
        for flags, environment, sentence in (
                (["--libc=newest"], {}, "worker: --libc=newest: must be auto, own or machine\n"),
                ([], {"STARRING_LIBC": "2.36"}, "worker: STARRING_LIBC=2.36: must be auto, own or machine\n")):
            done = subprocess.run([self.path("bin/worker"), *flags], env=environment, stderr=subprocess.PIPE, text=True,
                                  timeout=SECONDS_MAX, check=False)
            self.assertEqual((done.returncode, done.stderr), (2, sentence))
        self.assertIn("--libc=auto|own|machine", self.run_to_end([self.path("bin/worker"), "--help"]))

    def test_a_colon_in_the_path_is_a_sentence(self):
        link = os.path.join(self.folder, "a:b")
        os.mkdir(link)
        for name in ("bin", "lib", "libexec"):
            os.symlink(self.path(name), os.path.join(link, name))
        copy = shutil.copy(self.path("bin/worker"), os.path.join(link, "worker"))
        os.mkdir(os.path.join(link, "c"))
        done = subprocess.run([shutil.move(copy, os.path.join(link, "c/worker"))], env={}, stderr=subprocess.PIPE,
                              text=True, timeout=SECONDS_MAX, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("a:b: the loader cannot take the bundle's C library from a path with :", done.stderr)

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

    def on_a_bare_machine(self, jobs, tree=None):
        """Runs the lines of a shell script next to a new root, and gives the folder of results."""
        namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
        if subprocess.run([*namespaces, "mount", "-t", "tmpfs", "none", self.folder], check=False,
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no namespaces without root on this machine: only the mapped files were checked")
        root, results = os.path.join(self.folder, "root"), os.path.join(self.folder, "results")
        for folder in (root, results):
            os.makedirs(folder, exist_ok=True)
        with open(os.path.join(results, "name_server.py"), "w", encoding="utf-8") as file:
            file.write(NAME_SERVER)
        self.run_to_end([*namespaces, "sh", "-ec", BARE_MACHINE, "sh", root, self.bundle, results, "\n".join(jobs),
                         *([tree] if tree else [])],
                        {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        return results

    def make_tree(self, files):
        tree = os.path.join(self.folder, "tree")
        for name, data in files.items():
            path = os.path.join(tree, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            os.chmod(path, 0o755)
        return tree

    def test_on_a_bare_machine(self):
        jobs = {"alone": ["bin/worker", *JOB], "star": ["bin/launch", *STAR, "--", *JOB],
                "ring": ["bin/launch", *RING, "--", *JOB, "--same_host=socket"],
                "tcp": ["bin/launch", *RING, "--transport=tcp", "--", *JOB, "--same_host=socket"]}
        results = self.on_a_bare_machine(
            ["python3 -u $results/name_server.py >$results/ready &"]
            + [shlex.join(["bare", *job, f"--record=/tmp/{name}.json"]) for name, job in jobs.items()]
            + ["! ls -d $root/lib* $root/usr", "umount -l $root/proc", "bare bin/worker --version >$results/no_proc"])
        with open(os.path.join(results, "no_proc"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r"^starring worker \d")
        digests = {}
        for name in jobs:
            with open(os.path.join(results, f"{name}.json"), encoding="utf-8") as file:
                digests[name] = json.load(file)["parameter_sha256"]
        alone = self.train([], command=[self.path("bin/worker"), *JOB, f"--record={self.folder}/record.json"])
        star = self.train(STAR)
        self.assertEqual(digests, {"alone": alone, "star": star, "ring": star, "tcp": star})

    def test_names_of_hosts(self):
        tree = self.make_tree({"etc/nsswitch.conf": b"hosts: files dns\n", "etc/resolv.conf": b"nameserver 127.0.0.1\n",
                               "etc/hosts": b"127.0.0.1 localhost\n127.0.0.1 listed.example\n"})
        lines = ["python3 -u $results/name_server.py >$results/ready & server=$!",
                 "until [ -s $results/ready ]; do sleep 0.1; done"]
        for name, port in (("listed.example", 7001), ("asked.example", 7002)):
            rank = [*JOB, "--sync=ring", "--same_host=socket", "--world_size=2", f"--rendezvous={name}:{port}",
                    "--insecure", "--join_deadline_s=60"]
            lines += [shlex.join(["bare", "bin/worker", "--rank=1", *rank]) + " & other=$!",
                      shlex.join(["bare", "bin/worker", "--rank=0", *rank, f"--record=/tmp/{name}.json"]),
                      "wait $other"]
        results = self.on_a_bare_machine([*lines, "kill $server"], tree)
        for name in ("listed.example", "asked.example"):
            self.assertTrue(os.path.exists(os.path.join(results, f"{name}.json")), name)

    def test_the_newer_c_library_is_taken(self):
        machine = {}
        with open("/proc/self/maps", encoding="utf-8") as file:
            folder = os.path.dirname(next(line.split()[-1] for line in file if "/libc.so.6" in line))
        for name in filter(is_glibc, os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                machine[name] = file.read()
        versions = self.versions_in(machine["libc.so.6"])
        newest, free = max(versions), min(versions - set().union(*map(self.versions_in, self.elf_files())))
        # A new name for a version that no file of the bundle needs: the library works, and seems to be newer.
        cases = {"same": (newest, newest), "newer": (free, "GLIBC_2.99"), "older": (newest, "GLIBC_2.30")}
        expected = {("same", "auto"): "own", ("same", "own"): "own", ("same", "machine"): "machine",
                    ("newer", "auto"): "machine", ("newer", "own"): "own", ("newer", "machine"): "machine",
                    ("older", "auto"): "own", ("older", "own"): "own", ("older", "machine"): "refused"}
        found = {}
        for case, (old, new) in cases.items():
            changed = machine["libc.so.6"].replace(f"\0{old}\0".encode(), f"\0{new}\0".encode())
            # As RHEL and SLES have it: all in /usr/lib64, to which /lib64 is a link, and found by the loader's cache.
            tree = self.make_tree({**{f"usr/lib64/{name}": data for name, data in machine.items()},
                                   "usr/lib64/libc.so.6": changed, "etc/ld.so.conf": b"/usr/lib64\n"})
            lines = ["ln -s usr/lib64 $root/lib64", "/sbin/ldconfig -r $root", "variable=LD_DEBUG=libs"]
            results = self.on_a_bare_machine(
                lines + [f"bare bin/worker --libc={choice} --version >$results/{choice} 2>&1 || true"
                         for choice in ("auto", "own", "machine")], tree)
            for choice in ("auto", "own", "machine"):
                with open(os.path.join(results, choice), encoding="utf-8") as file:
                    text = file.read()
                # The program's is the last one: chroot has been loaded before.
                loaded = re.findall(r"calling init: (\S.*)/libc\.so\.6\n", text)[-1]
                if "starring worker " in text:
                    found[case, choice] = "own" if loaded.endswith("/starring/lib/glibc") else "machine"
                else:
                    self.assertRegex(text, r"this machine's glibc has the symbols of 2\.\d+ and older, the program "
                                           r"needs those of 2\.\d+: give --libc=own")
                    found[case, choice] = "refused"
        self.assertEqual(found, expected)

    @staticmethod
    def versions_in(data):
        """The versions of glibc's symbols whose names are in an ELF file: those that it defines or needs."""
        return {version.decode() for version in re.findall(rb"\0(GLIBC_2\.\d\d)(?=\0)", data)}

    def elf_files(self):
        """The bytes of the bundle's programs and libraries, without those of the C library."""
        for folder, _, names in os.walk(self.bundle):
            for name in names:
                data = self.read(os.path.relpath(os.path.join(folder, name), self.bundle))
                if is_elf(data) and not is_glibc(name):
                    yield data


class MakeBundleTest(unittest.TestCase):
    """Problems that must end the build of a bundle."""

    @classmethod
    def setUpClass(cls):
        with tarfile.open(ARCHIVE) as archive:
            cls.server = archive.extractfile(make_bundle.TOP + "/libexec/bin/server").read()
            cls.mpirun = archive.extractfile(make_bundle.TOP + "/libexec/openmpi/mpirun").read()

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

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
            self.bundle_with(self.server.replace(b"\0$ORIGIN/../../lib\0", b"\0$ORIGIN/../../bil\0"))

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
        self.assertEqual((elf.rpath, elf.runpath), ("$ORIGIN/../../lib", None))
        self.assertEqual(ElfFile("mpirun", elf.with_rpath("$ORIGIN")).rpath, "$ORIGIN")
        with self.assertRaisesRegex(ElfError, "does not fit"):
            elf.with_rpath("$ORIGIN/../../../lib")
        with self.assertRaisesRegex(ElfError, "no 64-bit"):
            ElfFile("text", b"#!/bin/sh")


if __name__ == "__main__":
    unittest.main()
