"""Tests the unit for systemd: systemd's own look at it, and its commands as systemd would run them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import unittest

from pods import DOMAIN, Container, Mount, Pod, PodTest

UNIT = os.path.abspath("deploy/systemd/starring-server@.service")
SMALL = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--epochs=2"]
BUNDLE_AT = "/opt/starring"
EXPOSURE_MAX = 1.5  # of 10, as `systemd-analyze security` counts


def settings() -> dict[str, list[str]]:
    """Of the section Service, in their order."""
    with open(UNIT, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.split("[Service]")[1].split("[Install]")[0].split("\n"):
        if line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


class UnitTest(PodTest):

    def analyze(self, *words: str) -> str:
        """A copy of the unit, whose programs are where this test has the bundle."""
        if shutil.which("systemd-analyze") is None:
            self.skipTest("this machine has no systemd-analyze")
        copy = os.path.join(self.above, os.path.basename(UNIT))
        with open(UNIT, encoding="utf-8") as file, open(copy, "w", encoding="utf-8") as changed:
            changed.write(file.read().replace(BUNDLE_AT, self.bundle))
        done = subprocess.run(["systemd-analyze", *words, copy], capture_output=True, text=True, check=False,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # An unknown setting is a warning.
        self.assertNotIn(os.path.basename(UNIT).replace("@.", "@"), done.stderr)
        return done.stdout + done.stderr

    def test_systemd_understands_it(self) -> None:
        self.assertNotRegex(self.analyze("verify"), r"starring-server@\S*:\d+:")

    def test_a_service_may_little(self) -> None:
        text = self.analyze("security", "--offline=true")
        exposure = re.search(r"exposure level for \S+: ([\d.]+)", text)
        assert exposure is not None, text
        self.assertLessEqual(float(exposure[1]), EXPOSURE_MAX)
        found = settings()
        for name, value in (("DynamicUser", "yes"), ("ProtectSystem", "strict"), ("NoNewPrivileges", "yes"),
                            ("CapabilityBoundingSet", ""), ("RuntimeDirectoryMode", "0700"), ("UMask", "0077")):
            self.assertEqual(found[name], [value])

    def test_its_commands_serve_a_job(self) -> None:
        self.begin_node()
        found = settings()
        self.assertEqual(found["LoadCredential"], ["secret:/etc/starring/secret"])
        secret = os.path.join(self.node.make_folder("credentials"), "secret")
        subprocess.run([self.bundle + "/bin/launch", "--make_secret=" + secret], check=True, stdout=subprocess.DEVNULL)
        pods = []
        for shard in range(2):
            environment = dict(word.split("=", 1) for value in found["Environment"] for word in shlex.split(value))
            environment["SHARD_COUNT"] = "2"  # as a file of settings has it
            place = "/run/" + found["RuntimeDirectory"][0].replace("%i", str(shard))
            mounts = [Mount(self.node.make_folder("credentials-%d" % shard), "/run/credentials", read_only=True),
                      Mount(self.node.make_folder("run-%d" % shard), place)]
            # As systemd 254 hands it over.
            shutil.copy(secret, mounts[0].source)
            os.chmod(os.path.join(mounts[0].source, "secret"), 0o440)
            before, main = (Container(self.words(found[name][0], shard, environment), environment, mounts)
                            for name in ("ExecStartPre", "ExecStart"))
            name = "node%d" % shard
            pods.append(self.node.start(Pod(name, main, [before], ["%s.%s" % (name, DOMAIN)], bundle_at=BUNDLE_AT)))
        port = found["Environment"][0].split("LISTEN=0.0.0.0:")[1].split(" ")[0]
        worker = Container(["/starring/bin/worker", *SMALL, "--servers=node0:%s,node1:%s" % (port, port),
                            "--checkpoint_dir=none", "--job_secret=/secret/secret"],
                           {}, [Mount(os.path.dirname(secret), "/secret", read_only=True)])
        pods.append(self.node.start(Pod("worker", worker)))
        for pod in reversed(pods):
            self.assertEqual(pod.wait(), 0, pod.text())
        self.assertIn("server 0: all workers have finished", pods[0].text())

    def words(self, command: str, shard: int, environment: dict[str, str]) -> list[str]:
        """The words of a command, as systemd makes them."""
        for short, value in (("%i", str(shard)), ("%d", "/run/credentials"), ("%t", "/run")):
            command = command.replace(short, value)
        words = []
        for word in shlex.split(command):
            if re.fullmatch(r"\$\w+", word):
                words += environment[word[1:]].split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], word))
        return words


if __name__ == "__main__":
    unittest.main()
