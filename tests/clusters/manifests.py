# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes, and what their tests ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "kubernetes"
Object = dict[str, Any]


def load() -> list[Object]:
    """Every object of every file."""
    files = sorted(FOLDER.glob("*.yaml"))
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> Object:
    """The one object of this kind."""
    (found,) = (candidate for candidate in load() if candidate["kind"] == kind)
    return found


def pod_templates(node: Any) -> Iterator[Object]:
    """Every template of pods inside an object."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield node
        else:
            for value in node.values():
                yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)


class Training(NamedTuple):
    """A job as all three kinds describe it."""

    queue: str
    pods: int
    slots: int
    launcher: Object
    """The launcher's container, with its command and its environment."""

    worker: Object
    """The template of the worker pods."""


def container(template: Object) -> Object:
    """The one container of a template of pods."""
    (found,) = template["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def queue_of(found: Object) -> str:
    """The queue of Kueue that an object names."""
    return str(found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"])


def mpijob() -> Training:
    """What the MPIJob says."""
    found = of_kind("MPIJob")
    replicas = found["spec"]["mpiReplicaSpecs"]
    return Training(
        queue_of(found),
        replicas["Worker"]["replicas"],
        found["spec"]["slotsPerWorker"],
        container(replicas["Launcher"]["template"]),
        replicas["Worker"]["template"],
    )


def _jobs(spec: Object) -> tuple[Object, Object]:
    """The jobs of workers and of the launcher in the spec of a JobSet."""
    worker, launcher = (job["template"]["spec"] for job in spec["replicatedJobs"])
    return worker, launcher


def trainjob() -> Training:
    """What the TrainJob and its runtime say; the Trainer puts the job's part into the launcher."""
    job, runtime = of_kind("TrainJob"), of_kind("ClusterTrainingRuntime")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    worker, launcher = _jobs(runtime["spec"]["template"]["spec"])
    trainer = job["spec"]["trainer"]
    merged = container(launcher["template"]) | {k: trainer[k] for k in ("command", "args", "env")}
    pods, slots = trainer["numNodes"], trainer["numProcPerNode"]
    return Training(queue_of(job), pods, slots, merged, worker["template"])


def jobset() -> Training:
    """What the JobSet and its list of hosts say."""
    found, hosts = of_kind("JobSet"), of_kind("ConfigMap")
    name = found["metadata"]["name"]
    worker, launcher = _jobs(found["spec"])
    listed = [line.split(" slots=") for line in hosts["data"]["hostfile"].splitlines()]
    pods = range(worker["parallelism"])
    assert [host for host, _ in listed] == [f"{name}-worker-0-{pod}.{name}" for pod in pods]
    (slots,) = {int(slots) for _, slots in listed}
    launching = container(launcher["template"])
    return Training(queue_of(found), len(pods), slots, launching, worker["template"])
