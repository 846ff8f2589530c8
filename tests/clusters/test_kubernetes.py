# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes against schemas, and against what the images do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

for needed in ("yaml", "jsonschema", "kubernetes_validate", "kubeflow_trainer_api"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: .ci/clusters does it")
import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
from kubeflow_trainer_api import models  # noqa: E402

from tests.clusters import manifests  # noqa: E402
from tests.clusters.manifests import Object  # noqa: E402

VERSION = "1.37"  # of Kubernetes
DOCKERFILE = (manifests.ROOT / "packaging/docker/Dockerfile").read_text()
TRAININGS = [manifests.mpijob, manifests.trainjob, manifests.jobset]
MODELS = {
    "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}

# What mpi-operator 0.8's CRD (manifests/base/kubeflow.org_mpijobs.yaml, version v2beta1) and its
# validation (pkg/apis/kubeflow/validation) allow. The CRD itself is 670 KB, of which the pods are
# nearly all: those are checked as pods.
COUNT = {"type": "integer", "minimum": 0}


def structure(required: list[str] | None = None, **properties: Object) -> Object:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def replicas(number: Object) -> Object:
    return structure(
        ["template"],
        replicas=number,
        restartPolicy={"enum": ["Never", "OnFailure"]},
        template={"type": "object"},
    )


RUN_POLICY = structure(
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    cleanPodPolicy={"enum": ["None", "Running", "All"]},
    managedBy={"type": "string"},
    suspend={"type": "boolean"},
    ttlSecondsAfterFinished=COUNT,
)
MPIJOB = structure(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata={"type": "object"},
    spec=structure(
        ["mpiReplicaSpecs", "slotsPerWorker"],
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        mpiReplicaSpecs=structure(
            ["Launcher", "Worker"],
            Launcher=replicas({"const": 1}),
            Worker=replicas(COUNT),
        ),
        runLauncherAsWorker={"type": "boolean"},
        runPolicy=RUN_POLICY,
        slotsPerWorker={"type": "integer", "minimum": 1},
        sshAuthMountPath={"type": "string", "pattern": "^/"},
    ),
)


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where `given` says what `kept` does not; what is only in `kept` are defaults."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for place, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}[{place}]")
    elif given != kept:
        yield f"{path}: {given!r} became {kept!r}"


def validate(found: Object) -> None:
    """Refuse what a server would refuse, or drop without a word."""
    for template in manifests.pod_templates(found):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate({**pod, "template": template}, VERSION, strict=True)
    kind = found["kind"]
    if kind == "MPIJob":
        jsonschema.validate(found, MPIJOB)
    elif kind in MODELS:
        dropped = list(lost(found, MODELS[kind].from_dict(found).to_dict()))
        assert not dropped, dropped
    else:
        kubernetes_validate.validate(found, VERSION, strict=True)


@pytest.mark.parametrize("found", manifests.load(), ids=lambda found: found["kind"])
def test_manifest_is_valid(found: Object) -> None:
    validate(found)


def test_all_kinds_are_there() -> None:
    kinds = sorted(found["kind"] for found in manifests.load())
    assert kinds == ["ClusterTrainingRuntime", "ConfigMap", "JobSet", "MPIJob", "TrainJob"]


def places(node: Any) -> Iterator[Object]:
    """Every object inside an object, but maps of names that are free."""
    if isinstance(node, dict):
        yield node
        for key, value in node.items():
            if key not in ("metadata", "requests", "limits", "matchLabels", "data"):
                yield from places(value)
    elif isinstance(node, list):
        for value in node:
            yield from places(value)


@pytest.mark.parametrize("found", manifests.load(), ids=lambda found: found["kind"])
def test_misspelt_field_is_refused_wherever_it_is(found: Object) -> None:
    for place in range(len(list(places(found)))):
        wrong = copy.deepcopy(found)
        list(places(wrong))[place]["fieldThatIsNone"] = "x"
        with pytest.raises(
            (AssertionError, jsonschema.ValidationError, kubernetes_validate.ValidationError)
        ):
            validate(wrong)


@pytest.mark.parametrize("training", TRAININGS)
def test_ranks_that_are_expected_are_those_that_start(
    training: Callable[[], manifests.Training],
) -> None:
    job = training()
    expected = {entry["name"]: entry["value"] for entry in job.launcher["env"]}["NGD_EXPECT_SIZE"]
    assert job.pods * job.slots == int(expected) == 4
    words = [*job.launcher["command"], *job.launcher["args"]]
    # With -np mpirun starts so many ranks also where it has not found its hosts.
    assert not {"-n", "-np", "-c", "--np"} & set(words)
    assert words[words.index("-x") + 1] == "NGD_EXPECT_SIZE"  # ranks on other hosts have it too


@pytest.mark.parametrize("training", TRAININGS)
def test_workers_are_placed_and_known_when_they_are_ready(
    training: Callable[[], manifests.Training],
) -> None:
    job = training()
    metadata, spec = job.worker["metadata"], job.worker["spec"]
    worker = manifests.container(job.worker)
    assert job.queue == "training"
    assert "kueue.x-k8s.io/podset-preferred-topology" in metadata["annotations"]
    (near,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = near["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert wanted.items() <= metadata["labels"].items()
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
    (volume,) = (v for v in spec["volumes"] if v["name"] == "shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    assert {"name": "shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert int(worker["resources"]["requests"]["cpu"]) >= job.slots


@pytest.mark.parametrize("found", manifests.load(), ids=lambda found: found["kind"])
def test_pods_are_guaranteed_what_they_ask_for_and_have_no_rights(found: Object) -> None:
    for template in manifests.pod_templates(found):
        container = manifests.container(template)
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert template["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000),
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_failures_start_a_job_again_so_often() -> None:
    assert manifests.of_kind("MPIJob")["spec"]["runPolicy"]["backoffLimit"] == 3
    runtime = manifests.of_kind("ClusterTrainingRuntime")["spec"]["template"]["spec"]
    for spec in (runtime, manifests.of_kind("JobSet")["spec"]):
        assert spec["failurePolicy"] == {"maxRestarts": 3}
        assert [job["template"]["spec"]["backoffLimit"] for job in spec["replicatedJobs"]] == [0, 0]
        workers, launcher = spec["replicatedJobs"]
        assert launcher["dependsOn"] == [{"name": workers["name"], "status": "Ready"}]
        assert spec["successPolicy"]["targetReplicatedJobs"] == [launcher["name"]]


def test_manifests_agree_with_the_image() -> None:
    images = {
        manifests.container(template)["image"]
        for found in manifests.load()
        for template in manifests.pod_templates(found)
    }
    assert images == {"registry.example.com/ngd:ompi"}
    page = (manifests.ROOT / "docs/containers.md").read_text()
    assert images.pop() in page
    programs = {training().launcher["args"][1] for training in TRAININGS}
    assert programs == {"/opt/ngd/examples/dist_mnist_mlp.py"}
    assert (manifests.ROOT / "examples/dist_mnist_mlp.py").exists()
    assert "cp -r /src/examples /opt/ngd/examples" in DOCKERFILE
    sshd = (manifests.ROOT / "packaging/docker/sshd_config").read_text()
    ssh = (manifests.ROOT / "packaging/docker/ssh_config").read_text()
    assert re.findall(r"^Port (\d+)$", sshd + ssh, re.M) == ["2222", "2222"]
    mounted = {
        manifests.of_kind("MPIJob")["spec"]["sshAuthMountPath"],
        manifests.of_kind("ClusterTrainingRuntime")["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"],
    }
    assert mounted == {"/home/mpiuser/.ssh"}
    assert "HostKey /home/mpiuser/.ssh/id_rsa" in sshd
