"""Parses the manifests of deploy/kubernetes and runs the commands of their pods, as a cluster would, to the end of a
small job whose parameters are those of a job without containers."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import signal
import subprocess
import time
import unittest
from typing import Any, Callable, Optional

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

from pods import PodTest, RunningPod

if yaml is not None:
    from manifests import INDEX_VARIABLE, Cluster, containers_of, load, named, of_kind

MANIFESTS = os.path.abspath("deploy/kubernetes")
NAMES = ("star", "ring", "elastic")
SECONDS_MAX = 100.0  # for a job of seconds on a loaded machine
PAUSE_S = 0.5  # before the first restart of a pod, twice as long before the next one; a cluster takes 10 s
SMALL = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=50", "--global_batch=32",
         "--epochs=2"]
# Some seconds, so that a pod can be lost in its midst.
LONGER = ["--dataset=synthetic", "--synthetic_train_count=16000", "--synthetic_test_count=50", "--global_batch=32",
          "--epochs=2", "--checkpoint_every_steps=100"]


def flag_of(container: dict[str, Any], name: str) -> Optional[str]:
    for word in container.get("args", []):
        if word.startswith("--%s=" % name):
            return str(word.split("=", 1)[1])
    return None


@unittest.skipIf(yaml is None, "python3-yaml is missing: deploy/setup.sh --test installs it")
class ManifestTest(unittest.TestCase):
    documents: dict[str, list[dict[str, Any]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.documents = {name: load(os.path.join(MANIFESTS, name + ".yaml")) for name in NAMES + ("storage",)}

    def workloads(self, name: str) -> list[dict[str, Any]]:
        return of_kind(self.documents[name], "StatefulSet", "Job", "Deployment")

    def test_every_file_is_looked_at(self) -> None:
        self.assertEqual(sorted(os.listdir(MANIFESTS)), sorted(name + ".yaml" for name in self.documents))
        for name, documents in self.documents.items():
            for document in documents:
                self.assertIn(document["kind"], ("ConfigMap", "Service", "StatefulSet", "Job", "Deployment",
                                                 "PersistentVolumeClaim"), name)
                self.assertRegex(document["metadata"]["name"], r"^[a-z][a-z0-9-]{0,51}$")

    def test_no_container_may_more_than_the_level_restricted(self) -> None:
        for name in NAMES:
            for workload in self.workloads(name):
                pod = workload["spec"]["template"]["spec"]
                context = pod["securityContext"]
                self.assertTrue(context["runAsNonRoot"])
                self.assertEqual((context["runAsUser"], context["runAsGroup"], context["fsGroup"]), (1000, 1000, 1000))
                self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertIs(pod["automountServiceAccountToken"], False)
                self.assertFalse({"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys())
                for container in containers_of(workload):
                    self.assertEqual(container["securityContext"],
                                     {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
                                      "capabilities": {"drop": ["ALL"]}}, container["name"])
                    self.assertIn("memory", container["resources"]["limits"])

    def test_the_secret_reaches_every_program_by_the_copy_alone(self) -> None:
        for name in NAMES:
            for workload in self.workloads(name):
                pod = workload["spec"]["template"]["spec"]
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                (given,) = [volume for volume in volumes.values() if "secret" in volume]
                self.assertEqual(given["secret"]["defaultMode"], 0o440)
                (copies,) = [volume for volume in volumes.values()
                             if volume.get("emptyDir", {}).get("medium") == "Memory"]
                (init,), (main,) = pod["initContainers"], pod["containers"]
                mounts = {one["name"]: {mount["name"]: mount for mount in one["volumeMounts"]} for one in (init, main)}
                self.assertTrue(mounts[init["name"]][given["name"]]["readOnly"])
                self.assertNotIn(given["name"], mounts[main["name"]])
                self.assertTrue(mounts[main["name"]][copies["name"]]["readOnly"])
                folder = mounts[main["name"]][copies["name"]]["mountPath"]
                self.assertEqual(flag_of(main, "job_secret"), folder + "/secret")
                self.assertEqual(init["command"][-1], "--make_secret=" + folder + "/secret")

    def test_the_numbers_of_processes_agree(self) -> None:
        for name in NAMES:
            jobs = of_kind(self.documents[name], "Job")
            for job in jobs:
                self.assertEqual(job["spec"]["completions"], job["spec"]["parallelism"])
                size = flag_of(job["spec"]["template"]["spec"]["containers"][0], "world_size")
                self.assertIn(size, (None, str(job["spec"]["completions"])))
            servers = [workload for workload in self.workloads(name)
                       if workload["spec"]["template"]["spec"]["containers"][0]["name"] == "server"]
            count = sum(workload["spec"].get("replicas", workload["spec"].get("completions", 0))
                        for workload in servers)
            for workload in servers:
                shards = flag_of(workload["spec"]["template"]["spec"]["containers"][0], "shard_count")
                self.assertEqual(shards, str(count), name)
            for workload in self.workloads(name):
                addresses = flag_of(workload["spec"]["template"]["spec"]["containers"][0], "servers")
                if addresses is not None:
                    self.assertEqual(len(addresses.split(",")), count, name)

    def test_selectors_and_references(self) -> None:
        claims = {claim["metadata"]["name"] for claim in self.documents["storage"]}
        used = set()
        for name in NAMES:
            for workload in self.workloads(name):
                template = workload["spec"]["template"]
                selector = workload["spec"].get("selector", {}).get("matchLabels", {})
                self.assertLessEqual(selector.items(), template["metadata"]["labels"].items())
                for volume in template["spec"]["volumes"]:
                    if "persistentVolumeClaim" in volume:
                        used.add(volume["persistentVolumeClaim"]["claimName"])
                    if "configMap" in volume:
                        named(self.documents[name], "ConfigMap", volume["configMap"]["name"])
                for container in containers_of(workload):
                    known = {volume["name"] for volume in template["spec"]["volumes"]}
                    known |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
                    self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, known)
                    variables = {entry["name"] for entry in container.get("env", [])}
                    if workload["kind"] == "Job":
                        variables.add(INDEX_VARIABLE)
                    for word in container.get("args", []):
                        self.assertLessEqual(set(re.findall(r"\$\((\w+)\)", word)), variables, word)
        self.assertEqual(used, claims)


@dataclasses.dataclass
class Outcome:
    codes: dict[str, int]  # of the pods of Jobs
    restarts: dict[str, int]
    record: Any
    seconds: float


@unittest.skipIf(yaml is None, "python3-yaml is missing: deploy/setup.sh --test installs it")
class RunTest(PodTest):
    secret: str
    digests: dict[tuple[str, ...], str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.secret = os.path.join(cls.above, "secret")
        subprocess.run([cls.bundle + "/bin/launch", "--make_secret=" + cls.secret], check=True,
                       stdout=subprocess.DEVNULL)
        cls.digests = {}

    def setUp(self) -> None:
        self.begin_node()

    def digest_without_containers(self, flags: list[str]) -> str:
        """Of a ring on this machine; a star has the same bits."""
        if tuple(flags) not in self.digests:
            record = os.path.join(self.above, "plain.json")
            subprocess.run([self.bundle + "/bin/launch", "--sync=ring", "--transport=tcp", "--workers=2", "--", *flags,
                            "--record=" + record], check=True, stdout=subprocess.DEVNULL, timeout=SECONDS_MAX)
            with open(record, encoding="utf-8") as file:
                self.digests[tuple(flags)] = json.load(file)["parameter_sha256"]
        return self.digests[tuple(flags)]

    def cluster(self, name: str, flags: list[str], edit: Optional[Callable[[list[dict[str, Any]]], None]] = None,
                ) -> Cluster:
        documents = load(os.path.join(MANIFESTS, name + ".yaml"))
        (config,) = of_kind(documents, "ConfigMap")
        # The flags that people edit are still read.
        self.assertIn("--dataset=synthetic", config["data"]["flags"].split("\n"))
        config["data"]["flags"] = "\n".join(flags) + "\n"
        if edit is not None:
            edit(documents)
        with open(self.secret, "rb") as file:
            return Cluster(self.node, documents, {"starring-secret": {"secret": file.read()}})

    def run_to_end(self, cluster: Cluster, watch: Callable[[dict[str, RunningPod]], None] = lambda pods: None,
                   ) -> Outcome:
        """Starts all pods, and again as their workloads say, until all Jobs are complete or one has failed."""
        begin = time.monotonic()
        plan = {planned.pod.name: planned for planned in cluster.plan()}
        running = {name: self.node.start(planned.pod) for name, planned in plan.items()}
        outcome = Outcome({}, {}, None, 0)
        starts: dict[str, float] = {}  # when pods that have ended are started again
        jobs = {name for name, planned in plan.items() if planned.workload["kind"] == "Job"}
        while not jobs <= outcome.codes.keys():
            self.assertLess(time.monotonic() - begin, SECONDS_MAX, self.texts(running))
            watch(running)
            for name, planned in plan.items():
                code = running[name].process.poll()
                if code is None or name in outcome.codes:
                    continue
                if planned.starts_again(code):
                    count = outcome.restarts.get(name, 0)
                    if time.monotonic() < starts.setdefault(name, time.monotonic() + PAUSE_S * 2 ** count):
                        continue
                    del starts[name]
                    outcome.restarts[name] = count + 1
                    running[name] = self.node.start(planned.pod)
                else:
                    outcome.codes[name] = code
                    self.assertEqual(code, 0, self.texts(running))
            time.sleep(0.05)  # the period of looks at the pods
        outcome.seconds = time.monotonic() - begin
        (config,) = of_kind(cluster.documents, "ConfigMap")
        with open(os.path.join(cluster.claim("starring-checkpoints"), config["data"]["run"] + ".json"),
                  encoding="utf-8") as file:
            outcome.record = json.load(file)
        return outcome

    def texts(self, running: dict[str, RunningPod]) -> str:
        return "\n".join("%s:\n%s" % (name, pod.text()) for name, pod in running.items())

    def kill_once(self, name: str, folder: str) -> Callable[[dict[str, RunningPod]], None]:
        """Kills a pod when the first checkpoint is there."""
        killed: list[str] = []

        def watch(running: dict[str, RunningPod]) -> None:
            if not killed and os.path.isdir(folder) and any(entry.startswith("step-") for entry in os.listdir(folder)):
                killed.append(name)
                running[name].send(signal.SIGKILL)

        return watch

    def seconds_after(self, pods: list[RunningPod], name: str) -> float:
        """From the first line of the coordinator that was started again to its first generation."""
        text = [pod for pod in pods if pod.pod.name == name][-1].text()
        stamps = [datetime.datetime.fromisoformat(stamp) for stamp in re.findall(
            r"^(\S+)Z server 0: (?:connections are not|generation)", text, re.M)]
        self.assertGreaterEqual(len(stamps), 2, text)
        return (stamps[1] - stamps[0]).total_seconds()

    def test_the_star(self) -> None:
        facts: dict[str, str] = {}

        def look(running: dict[str, RunningPod]) -> None:
            if not facts and "listening on" in running["star-server-0"].text():
                facts.update(running["star-server-0"].facts())

        outcome = self.run_to_end(self.cluster("star", SMALL), look)
        self.assertEqual(outcome.codes, {"star-worker-0": 0, "star-worker-1": 0})
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(SMALL))
        # Both are on one machine, and each process has the number 1.
        self.assertFalse(outcome.record["exchange"]["shared_memory"])
        self.assertIn("cannot map this worker's memory", outcome.record["exchange"]["not_shared"])
        self.assertEqual((facts["CapEff"], facts["CapPrm"], facts["NoNewPrivs"]), ("0" * 16, "0" * 16, "1"))

    def test_the_ring(self) -> None:
        outcome = self.run_to_end(self.cluster("ring", SMALL))
        self.assertEqual(outcome.codes, {"ring-0": 0, "ring-1": 0})
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(SMALL))

    def test_the_elastic_star(self) -> None:
        outcome = self.run_to_end(self.cluster("elastic", SMALL))
        self.assertEqual(outcome.codes, {"elastic-coordinator-0": 0})
        # Two micro-batches and two workers: the sums of a ring.
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(SMALL))

    def test_without_the_copy_the_secret_is_refused(self) -> None:
        def without_copy(documents: list[dict[str, Any]]) -> None:
            for workload in of_kind(documents, "Job"):
                pod = workload["spec"]["template"]["spec"]
                del pod["initContainers"]
                pod["containers"][0]["volumeMounts"] = [
                    {**mount, "name": "given-secret"} if mount["name"] == "secret" else mount
                    for mount in pod["containers"][0]["volumeMounts"]]

        (planned, _) = self.cluster("ring", SMALL, without_copy).plan()
        pod = self.node.start(planned.pod)
        self.assertEqual(pod.wait(), 2, pod.text())
        self.assertIn("/secret/secret has mode 0440, at most 0600 is allowed", pod.text())
        self.assertTrue(planned.fails_the_job(2))

    def test_names_may_come_late(self) -> None:
        cluster = self.cluster("ring", SMALL)
        first, second = cluster.plan()
        late = self.node.start(second.pod)
        time.sleep(1)  # so long the name of pod 0 is unknown
        pods = [late, self.node.start(first.pod)]
        for pod in pods:
            self.assertEqual(pod.wait(), 0, pod.text())

    def test_a_star_goes_on_from_its_checkpoint_when_a_worker_was_killed(self) -> None:
        # A minute, the default, is how long the others wait for a worker that is gone.
        cluster = self.cluster("star", LONGER + ["--exchange_deadline_s=3"])
        folder = os.path.join(cluster.claim("starring-checkpoints"), "star-1")
        outcome = self.run_to_end(cluster, self.kill_once("star-worker-1", folder))
        self.assertGreater(outcome.restarts["star-worker-1"], 0)
        self.assertGreater(outcome.restarts["star-worker-0"], 0)
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(LONGER))

    def test_an_elastic_star_goes_on_when_its_coordinator_was_killed(self) -> None:
        # It comes back at another address. Without a limit of its own, gRPC tries the old one for 20 s.
        cluster = self.cluster("elastic", LONGER)
        folder = os.path.join(cluster.claim("starring-checkpoints"), "elastic-1")
        outcome = self.run_to_end(cluster, self.kill_once("elastic-coordinator-0", folder))
        self.assertEqual(outcome.restarts["elastic-coordinator-0"], 1)
        self.assertLess(self.seconds_after(self.node.pods, "elastic-coordinator-0"), 15)
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(LONGER))

    def test_workers_of_an_elastic_star_come_and_go(self) -> None:
        cluster = self.cluster("elastic", LONGER)
        folder = os.path.join(cluster.claim("starring-checkpoints"), "elastic-1")
        gone: list[int] = []

        def scale_down(running: dict[str, RunningPod]) -> None:
            if not gone and os.path.isdir(folder) and os.listdir(folder):
                running["elastic-worker-1"].send(signal.SIGTERM)
                gone.append(running["elastic-worker-1"].wait())

        outcome = self.run_to_end(cluster, scale_down)
        self.assertEqual(gone, [0])
        self.assertEqual(outcome.record["parameter_sha256"], self.digest_without_containers(LONGER))


if __name__ == "__main__":
    unittest.main()
