# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes, and functions that read their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "kubernetes"
Object = dict[str, Any]


def load() -> list[Object]:
    """Return every object of every file."""
    files = sorted(FOLDER.glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> Object:
    """Return the only object of this kind."""
    (only_object,) = (candidate for candidate in load() if candidate["kind"] == kind)
    return only_object


def pod_templates(node: Any) -> Iterator[Object]:
    """Yield every template of pods inside an object."""
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
    """A job, in the terms that all three kinds of objects share."""

    queue: str
    pods: int
    slots: int
    launcher: Object
    """The container of the launcher, with its command and its environment."""

    worker: Object
    """The template of the worker pods."""


def container(template: Object) -> Object:
    """Return the only container of a template of pods."""
    (only_container,) = template["spec"]["containers"]
    return only_container  # type: ignore[no-any-return]


def queue_of(found: Object) -> str:
    """Return the queue of Kueue that an object names."""
    return str(found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"])


def mpijob() -> Training:
    """Return the job that the MPIJob describes."""
    manifest = of_kind("MPIJob")
    replicas = manifest["spec"]["mpiReplicaSpecs"]
    return Training(
        queue_of(manifest),
        replicas["Worker"]["replicas"],
        manifest["spec"]["slotsPerWorker"],
        container(replicas["Launcher"]["template"]),
        replicas["Worker"]["template"],
    )


def _jobs(spec: Object) -> tuple[Object, Object]:
    """Return the jobs of the workers and of the launcher in the spec of a JobSet."""
    worker, launcher = (job["template"]["spec"] for job in spec["replicatedJobs"])
    return worker, launcher


def trainjob() -> Training:
    """Return the job of the TrainJob and its runtime. The launcher takes fields of the job."""
    job, runtime = of_kind("TrainJob"), of_kind("ClusterTrainingRuntime")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    worker, launcher = _jobs(runtime["spec"]["template"]["spec"])
    trainer = job["spec"]["trainer"]
    merged = container(launcher["template"]) | {k: trainer[k] for k in ("command", "args", "env")}
    pods, slots = trainer["numNodes"], trainer["numProcPerNode"]
    return Training(queue_of(job), pods, slots, merged, worker["template"])


def jobset() -> Training:
    """Return the job of the JobSet and its list of hosts."""
    manifest, hosts = of_kind("JobSet"), of_kind("ConfigMap")
    name = manifest["metadata"]["name"]
    worker, launcher = _jobs(manifest["spec"])
    hosts_and_slots = [line.split(" slots=") for line in hosts["data"]["hostfile"].splitlines()]
    pods = range(worker["parallelism"])
    assert [host for host, _ in hosts_and_slots] == [
        f"{name}-worker-0-{pod}.{name}" for pod in pods
    ]
    (slots,) = {int(slots) for _, slots in hosts_and_slots}
    launching = container(launcher["template"])
    return Training(queue_of(manifest), len(pods), slots, launching, worker["template"])
