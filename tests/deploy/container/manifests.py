"""Makes pods of manifests, as a cluster would: names, variables, volumes and the index of each pod."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from typing import Any, Iterator, Optional

import yaml

from pods import DOMAIN, Container, Mount, Node, Pod

INDEX_LABEL = "apps.kubernetes.io/pod-index"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def load(path: str) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document is not None]


def of_kind(documents: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] in kinds]


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(document for document in of_kind(documents, kind) if document["metadata"]["name"] == name)


def containers_of(workload: dict[str, Any]) -> list[dict[str, Any]]:
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


@dataclasses.dataclass
class Planned:
    """A pod, and the rules by which its workload starts it again."""
    pod: Pod
    workload: dict[str, Any]

    def starts_again(self, code: int) -> bool:
        return self.workload["kind"] != "Job" or (code != 0 and not self.fails_the_job(code))

    def fails_the_job(self, code: int) -> bool:
        if self.workload["kind"] != "Job":
            return False
        for rule in self.workload["spec"].get("podFailurePolicy", {}).get("rules", []):
            codes = rule.get("onExitCodes", {})
            if rule["action"] == "FailJob" and codes.get("operator") == "In" and code in codes["values"]:
                return True
        return False


class Cluster:
    """The objects of some manifests on one node. Volumes are folders of the node."""

    def __init__(self, node: Node, documents: list[dict[str, Any]], secrets: dict[str, dict[str, bytes]]) -> None:
        self.node = node
        self.documents = copy.deepcopy(documents)
        self.secrets = secrets

    def workloads(self) -> list[dict[str, Any]]:
        return of_kind(self.documents, "StatefulSet", "Job", "Deployment")

    def plan(self) -> list[Planned]:
        planned = []
        for workload in self.workloads():
            if workload["kind"] == "Job":
                count, first = workload["spec"]["completions"], 0
            else:
                count, first = workload["spec"]["replicas"], workload["spec"].get("ordinals", {}).get("start", 0)
            planned += [Planned(self.pod(workload, index), workload) for index in range(first, first + count)]
        return planned

    def claim(self, name: str) -> str:
        """The folder of a claim that outlives pods."""
        return self.node.make_folder("claim-" + name)

    def pod(self, workload: dict[str, Any], index: int) -> Pod:
        template = copy.deepcopy(workload["spec"]["template"])
        name = "%s-%d" % (workload["metadata"]["name"], index)
        metadata: dict[str, Any] = {"name": name, "labels": dict(template["metadata"]["labels"]),
                                    "annotations": dict(template["metadata"].get("annotations", {}))}
        service = template["spec"].get("subdomain")
        own_variables = []
        if workload["kind"] == "StatefulSet":
            metadata["labels"][INDEX_LABEL] = str(index)
            service = workload["spec"]["serviceName"]
        if workload["kind"] == "Job":
            assert workload["spec"]["completionMode"] == "Indexed", name
            metadata["annotations"][INDEX_ANNOTATION] = str(index)
            field = {"fieldPath": "metadata.annotations['%s']" % INDEX_ANNOTATION}
            own_variables = [{"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": field}}]
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            claim_name = claim["metadata"]["name"]
            assert claim_name not in volumes, claim_name
            volumes[claim_name] = {"persistentVolumeClaim": {"claimName": "%s-%s" % (claim_name, name)}}
        has_group = "fsGroup" in template["spec"].get("securityContext", {})
        folders = {volume: self._folder_of(name, volume, source, has_group) for volume, source in volumes.items()}

        def made(container: dict[str, Any]) -> Container:
            environment = self._environment([*container.get("env", []), *own_variables], metadata)
            words = [*container["command"], *container.get("args", [])]
            return Container(
                [expanded(word, environment) for word in words], environment,
                [Mount(folders[mount["name"]], mount["mountPath"], mount.get("readOnly", False))
                 for mount in container.get("volumeMounts", [])])

        (main,) = template["spec"]["containers"]
        return Pod(name, made(main), [made(container) for container in template["spec"].get("initContainers", [])],
                   list(self._names(name, service, metadata["labels"])))

    def _names(self, name: str, service: Optional[str], labels: dict[str, str]) -> Iterator[str]:
        """A pod has a name of its own in a headless service of its domain that selects it."""
        for one in of_kind(self.documents, "Service"):
            is_selected = one["spec"]["selector"].items() <= labels.items()
            if one["metadata"]["name"] == service and one["spec"]["clusterIP"] == "None" and is_selected:
                yield "%s.%s.%s" % (name, service, DOMAIN)

    def _environment(self, entries: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, str]:
        environment: dict[str, str] = {}
        for entry in entries:
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                value = field_of(metadata, source["fieldRef"]["fieldPath"])
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                value = named(self.documents, "ConfigMap", reference["name"])["data"][reference["key"]]
            else:
                value = expanded(entry["value"], environment)
            environment[entry["name"]] = value
        return environment

    def _folder_of(self, pod: str, volume: str, source: dict[str, Any], has_group: bool) -> str:
        if "persistentVolumeClaim" in source:
            return self.claim(source["persistentVolumeClaim"]["claimName"])
        folder = self.node.make_folder("volume-%s-%s" % (pod, volume))
        if "configMap" in source:
            for key, text in named(self.documents, "ConfigMap", source["configMap"]["name"])["data"].items():
                write(os.path.join(folder, key), text.encode(), 0o644)
        elif "secret" in source:
            # The kubelet lets the pod's group read what the pod's user does not own.
            mode = source["secret"].get("defaultMode", 0o644) | (0o440 if has_group else 0)
            for key, data in self.secrets[source["secret"]["secretName"]].items():
                write(os.path.join(folder, key), data, mode)
        else:
            assert "emptyDir" in source, volume
        return folder


def write(path: str, data: bytes, mode: int) -> None:
    if os.path.exists(path):
        os.remove(path)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def field_of(metadata: dict[str, Any], path: str) -> str:
    if path == "metadata.name":
        return str(metadata["name"])
    found = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    assert found is not None, path
    return str(metadata[found[1]][found[2]])


def expanded(word: str, environment: dict[str, str]) -> str:
    """$(NAME) becomes the variable; a name that is no variable stays."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), word)
