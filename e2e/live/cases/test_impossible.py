"""A manifest that asks for the sidecar and cannot have it is denied with the reason and the fix by `kubectl apply`."""

from __future__ import annotations

import pytest

from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


def test_a_deployment_that_cannot_have_the_sidecar_is_denied_with_the_reason_and_the_fix(
    kubectl: kubectls.Kubectl,
) -> None:
    said = kubectl.apply(steps.manifest("impossible_deployment"), check=False)
    assert said.status != 0
    assert (
        "Deployment/echo cannot get the Carpool sidecar: the pod uses the host's network, where the sidecar's ports "
        "would be the node's; remove hostNetwork, or run carpool-sidecar yourself on ports you choose"
    ) in said.errors
    assert kubectl.list("deployments") == []


def test_a_misspelt_setting_is_denied_with_what_is_allowed(kubectl: kubectls.Kubectl) -> None:
    said = kubectl.apply(steps.manifest("misspelt_annotation"), check=False)
    assert said.status != 0
    assert "carpool.dev/max-batch-size: got 'thirty': must be a whole number from 1 to 100,000" in said.errors
    assert kubectl.list("deployments") == []


@pytest.mark.usefixtures("kserve")
def test_an_inference_service_whose_pods_cannot_have_the_sidecar_is_accepted_with_a_warning(
    kubectl: kubectls.Kubectl,
) -> None:
    said = kubectl.apply(steps.manifest("impossible_inferenceservice"))
    assert "Warning: in Standard mode its pods get no Carpool sidecar: port 8080" in said.errors
    assert "set spec.predictor.batcher in the InferenceService" in said.errors
    assert [each["metadata"]["name"] for each in kubectl.list("inferenceservices")] == ["echo"]


@pytest.mark.usefixtures("kserve")
def test_its_pods_say_themselves_why_they_have_none(kubectl: kubectls.Kubectl) -> None:
    kubectl.apply(steps.manifest("impossible_inferenceservice"))
    pod = steps.created_pod(kubectl, "serving.kserve.io/inferenceservice=echo")
    assert set(steps.containers(pod)) == {"kserve-container"}
    assert steps.injection(pod)["refused"] == "no-takeover"
    assert "its server is not recognised" in steps.injection(pod)["message"]
