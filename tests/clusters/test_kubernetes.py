# SPDX-License-Identifier: Apache-2.0
"""Tests of the manifests of packaging/kubernetes against schemas, and against the images."""

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

# The fields that mpi-operator 0.8 allows, by its CRD (manifests/base/kubeflow.org_mpijobs.yaml,
# version v2beta1) and its validation (pkg/apis/kubeflow/validation). The CRD has 670 KB. Nearly all
# of it describes pods, which are checked as pods.
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


def differences(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the differences of `kept` from `given`, except fields that only `kept` has."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from differences(value, kept.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif given != kept:
        yield f"{path}: {given!r} became {kept!r}"


def validate(manifest: Object) -> None:
    """Raise if a server would reject an object, or drop a part of it silently."""
    for template in manifests.pod_templates(manifest):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate({**pod, "template": template}, VERSION, strict=True)
    kind = manifest["kind"]
    if kind == "MPIJob":
        jsonschema.validate(manifest, MPIJOB)
    elif kind in MODELS:
        dropped = list(differences(manifest, MODELS[kind].from_dict(manifest).to_dict()))
        assert not dropped, dropped
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("found", manifests.load(), ids=lambda manifest: manifest["kind"])
def test_manifest_is_valid(manifest: Object) -> None:
    validate(manifest)


def test_every_kind_has_a_manifest() -> None:
    kinds = sorted(manifest["kind"] for manifest in manifests.load())
    assert kinds == ["ClusterTrainingRuntime", "ConfigMap", "JobSet", "MPIJob", "TrainJob"]


def objects_in(node: Any) -> Iterator[Object]:
    """Yield every object inside an object, except maps with arbitrary names."""
    if isinstance(node, dict):
        yield node
        for key, value in node.items():
            if key not in ("metadata", "requests", "limits", "matchLabels", "data"):
                yield from objects_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from objects_in(value)


@pytest.mark.parametrize("found", manifests.load(), ids=lambda manifest: manifest["kind"])
def test_a_misspelt_field_is_rejected_anywhere(manifest: Object) -> None:
    for index in range(len(list(objects_in(manifest)))):
        wrong = copy.deepcopy(manifest)
        list(objects_in(wrong))[index]["fieldThatIsNone"] = "x"
        with pytest.raises(
            (AssertionError, jsonschema.ValidationError, kubernetes_validate.ValidationError)
        ):
            validate(wrong)


@pytest.mark.parametrize("training", TRAININGS)
def test_the_expected_number_of_ranks_is_started(
    training: Callable[[], manifests.Training],
) -> None:
    job = training()
    expected = {entry["name"]: entry["value"] for entry in job.launcher["env"]}["NGD_EXPECT_SIZE"]
    assert job.pods * job.slots == int(expected) == 4
    words = [*job.launcher["command"], *job.launcher["args"]]
    # With -np, mpirun starts this number of ranks even if it has not found its hosts.
    assert not {"-n", "-np", "-c", "--np"} & set(words)
    assert words[words.index("-x") + 1] == "NGD_EXPECT_SIZE"  # ranks on other hosts have it, too


@pytest.mark.parametrize("training", TRAININGS)
def test_workers_have_an_affinity_and_a_readiness_probe(
    training: Callable[[], manifests.Training],
) -> None:
    job = training()
    metadata, spec = job.worker["metadata"], job.worker["spec"]
    worker = manifests.container(job.worker)
    assert job.queue == "training"
    assert "kueue.x-k8s.io/podset-preferred-topology" in metadata["annotations"]
    (near,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = near["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels.items() <= metadata["labels"].items()
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
    (volume,) = (v for v in spec["volumes"] if v["name"] == "shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    assert {"name": "shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert int(worker["resources"]["requests"]["cpu"]) >= job.slots


@pytest.mark.parametrize("found", manifests.load(), ids=lambda manifest: manifest["kind"])
def test_pods_have_guaranteed_resources_and_no_privileges(manifest: Object) -> None:
    for template in manifests.pod_templates(manifest):
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


def test_a_failed_job_restarts_three_times() -> None:
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
        for manifest in manifests.load()
        for template in manifests.pod_templates(manifest)
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
