"""Runs the page beside this file, the owner's journey from `helm install` to `helm uninstall`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster import binaries, clusters
from e2e.cluster import kubectl as kubectls
from e2e.live import releases
from e2e.live.journey import page

JOURNEY_SECONDS = 900
SAMPLE = page.ROOT / "manifests" / "samples" / "inferenceservice-custom.yaml"
# What the fixtures do, with the same commands: the cluster and its images.
BEFORE = ("A cluster", "Images")

Check = Callable[[str], None]


def answers(output: str) -> list[dict[str, object]]:
    """The JSON objects among the lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def batch_ids(output: str) -> set[object]:
    return {answer["batchId"] for answer in answers(output)}


def predictions(output: str) -> set[str]:
    return {str(row) for answer in answers(output) for row in answer["predictions"]}  # type: ignore[attr-defined]


CALLERS = {f"caller {number}" for number in range(1, 5)}


def check_install(output: str) -> None:
    assert "STATUS: deployed" in output


def check_test(output: str) -> None:
    assert re.search(r"Phase:\s+Succeeded", output)


def check_inference_service(output: str) -> None:
    assert "inferenceservice.serving.kserve.io/echo condition met" in output


def check_call(output: str) -> None:
    (answer,) = answers(output)
    assert answer["predictions"] == ["hello"]
    assert answer["batchId"]


def check_batch(output: str) -> None:
    assert predictions(output) == CALLERS
    assert len(answers(output)) == 4
    assert len(batch_ids(output)) == 1


def check_load(output: str) -> None:
    assert re.findall(r"\[(\d+)\]\s+(\d+) responses", output) == [("200", "1920")]


def check_metrics(output: str) -> None:
    found = dict(line.rsplit(" ", 1) for line in output.splitlines())
    instances = float(found["carpool_batch_size_sum"])
    assert instances >= 1925
    assert instances / float(found["carpool_batch_size_count"]) >= 2


def check_change(output: str) -> None:
    assert "--max-batch-size=2" in output
    assert predictions(output) == {"hello", *CALLERS}
    assert len(batch_ids(output)) == 3


def check_uninstall(output: str) -> None:
    assert 'release "carpool" uninstalled' in output


def check_nothing_left(output: str) -> None:
    assert output.splitlines() == ["No resources found", "No resources found in carpool-system namespace."]


def check_pods_keep_serving(output: str) -> None:
    assert predictions(output) == CALLERS
    assert len(batch_ids(output)) == 2


def check_clean_up(output: str) -> None:
    assert 'namespace "carpool-system" deleted' in output


CHECKS: dict[str, Check] = {
    "Install": check_install,
    "Check the installation": check_test,
    "An InferenceService": check_inference_service,
    "A call": check_call,
    "A batch": check_batch,
    "Load": check_load,
    "What the sidecar counted": check_metrics,
    "Change": check_change,
    "Uninstall": check_uninstall,
    "Nothing left": check_nothing_left,
    "Pods keep serving": check_pods_keep_serving,
    "Clean up": check_clean_up,
}


@pytest.fixture
def shell(
    cluster: clusters.Cluster, kserve: None, shared_release: releases.Release, cluster_kubectl: kubectls.Kubectl
) -> Iterator[page.Shell]:
    """A reader's shell, in a cluster with the images and without the release; neither journey nor release is left."""
    exported = {"KUBECONFIG": str(cluster.kubeconfig), "INGRESS": cluster.ingress}
    clear(shared_release, cluster_kubectl)
    yield page.Shell(page.environment_with(str(binaries.folder_for_path()), **exported))
    clear(shared_release, cluster_kubectl)


def clear(release: releases.Release, kubectl: kubectls.Kubectl) -> None:
    kubectl.run("delete", "deployment,service", "echo", "--ignore-not-found", timeout=120)
    kubectl.run("delete", "-f", str(SAMPLE), "--ignore-not-found", timeout=120)
    release.uninstall()
    kubectl.delete("namespace", releases.NAMESPACE)


def test_every_step_of_the_page_is_run_and_checked() -> None:
    headings = [step.heading for step in page.steps() if step.commands]
    assert headings == [*BEFORE, *CHECKS]


@pytest.mark.smoke
@pytest.mark.timeout(JOURNEY_SECONDS)
def test_an_owner_gets_from_helm_install_to_a_batched_answer_and_back_to_nothing(shell: page.Shell) -> None:
    for step in page.steps():
        if step.heading in CHECKS:
            output = shell.run(step)
            print(f"## {step.heading}\n{output}")
            CHECKS[step.heading](output)


@pytest.mark.smoke
@pytest.mark.timeout(JOURNEY_SECONDS)
def test_the_first_ten_minutes_end_with_a_batch_of_three(shell: page.Shell) -> None:
    (step,) = [each for each in page.steps(page.ROOT / "README.md") if each.heading == page.FIRST_TEN_MINUTES]
    output = shell.run(step)
    print(output)
    assert predictions(output) == {"caller 1", "caller 2", "caller 3"}
    assert len(batch_ids(output)) == 1
    assert "2/2" in output
    assert 'release "carpool" uninstalled' in output
