"""Who may do what: the rights are by name where a name is known, and no more than these."""

from __future__ import annotations

import pytest

from carpool_injector.core import surroundings
from tests.charts import helm, objects, pages
from tests.charts.rights import Right, asked, granted, rights

NAME, REGISTRATIONS = "carpool-injector", "admissionregistration.k8s.io"


def injectors(*more: str) -> set[Right]:
    return rights(objects.rendered(*more), "carpool-injector")


def test_the_injector_may_do_this_and_nothing_else() -> None:
    everywhere = {
        "events": ("create",),
        "namespaces": ("get", "list", "watch"),
        "nodes": ("list",),
        "pods": ("list",),
    }
    webhooks = ("mutatingwebhookconfigurations", "zz-carpool-injector"), ("validatingwebhookconfigurations", NAME)
    assert injectors() == {
        *(("", "", resource, "", verb) for resource, verbs in everywhere.items() for verb in verbs),
        *(("", REGISTRATIONS, resource, name, verb) for resource, name in webhooks for verb in ("get", "patch")),
        # Creation cannot be granted for one name: the API server does not know it yet when it asks.
        (helm.NAMESPACE, "", "secrets", "", "create"),
        *((helm.NAMESPACE, "", "secrets", f"{NAME}-certificates", verb) for verb in ("get", "patch")),
    }


def test_secrets_and_webhooks_are_granted_by_name() -> None:
    named = {(resource, name, verb) for _, _, resource, name, verb in injectors() if name or verb != "create"}
    assert {each for each in named if each[0] in ("secrets", "mutatingwebhookconfigurations")} == {
        ("secrets", "carpool-injector-certificates", "get"),
        ("secrets", "carpool-injector-certificates", "patch"),
        ("mutatingwebhookconfigurations", "zz-carpool-injector", "get"),
        ("mutatingwebhookconfigurations", "zz-carpool-injector", "patch"),
    }


@pytest.mark.parametrize("name", ["cert-manager", "issuer", "existing-secret"])
def test_certificates_of_others_need_no_rights_at_all(name: str) -> None:
    resources = {resource for _, _, resource, _, _ in rights(objects.scenario(name), "carpool-injector")}
    assert resources == {"namespaces", "nodes", "events", "pods", "mutatingwebhookconfigurations"}


def test_pods_are_listed_only_where_those_that_missed_the_sidecar_are_counted() -> None:
    assert injectors() - injectors("--set", "missedPods.enabled=false") == {("", "", "pods", "", "list")}
    others = rights(objects.rendered(values=objects.SCENARIOS["cert-manager"]), "carpool-injector")
    assert {each[2:] for each in others if each[1].startswith("admission")} == {
        ("mutatingwebhookconfigurations", "zz-carpool-injector", "get")
    }


def test_pods_are_evicted_only_where_those_that_missed_the_sidecar_are_to_be_restarted() -> None:
    assert injectors("--set", "missedPods.restart=true") - injectors() == {("", "", "pods/eviction", "", "create")}


def test_without_events_none_may_be_written() -> None:
    assert "events" not in {resource for _, _, resource, _, _ in injectors("--set", "events=false")}


@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_nobody_may_do_everything_or_read_all_secrets(name: str) -> None:
    for account in ("carpool-injector", "carpool-check", "team-a-injector", "team-a-check"):
        found = rights(objects.scenario(name), account)
        assert not {each for each in found if "*" in each[1:]}
        assert not {each for each in found if each[2] == "secrets" and not each[3] and each[4] != "create"}
        # Except for the check's look at whether pull secrets are there, by their names.
        everywhere = {each for each in found if each[2] == "secrets" and not each[0]}
        assert {(each[3], each[4]) for each in everywhere} <= {("registry", "get"), ("mirror.example", "get")}
        assert not everywhere or account.endswith("-check")


def test_the_check_may_look_at_what_it_tells_about() -> None:
    assert rights(objects.rendered(), "carpool-check") == {
        ("", "", "nodes", "", "list"),
        ("", "", "pods", "", "list"),
        ("", "", "configmaps", "inferenceservice-config", "get"),
        ("", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "zz-carpool-injector", "get"),
        ("", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"),
        (
            "", "admissionregistration.k8s.io", "mutatingwebhookconfigurations",
            "inferenceservice.serving.kserve.io", "get",
        ),
        ("", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "carpool-injector", "get"),
        *(("", "", resource, "", "list") for resource in ("namespaces", "limitranges", "resourcequotas")),
        ("", "discovery.k8s.io", "endpointslices", "", "list"),
        *(("", each.group, each.plural, "", "list") for each in surroundings.POLICIES),
        (helm.NAMESPACE, "", "secrets", "carpool-injector-certificates", "get"),
        ("default", "", "pods", "", "create"),
    }  # fmt: skip


def test_the_rights_of_the_check_are_there_while_it_runs_only() -> None:
    standing = objects.installed(objects.rendered())
    assert rights(standing, "carpool-check") == set()


def test_an_account_of_others_is_bound_and_none_is_made() -> None:
    things = objects.installed(objects.rendered("--set", "serviceAccount.create=false,serviceAccount.name=mine"))
    assert objects.of_kind(things, "ServiceAccount") == []
    assert rights(things, "mine")
    assert objects.one(things, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_without_rbac_none_is_made() -> None:
    kinds = {thing["kind"] for thing in objects.installed(objects.scenario("small"))}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"}


def test_the_injector_is_granted_each_call_that_its_code_makes_and_no_other() -> None:
    everything = injectors("--set", "missedPods.restart=true")
    given = {(resource, verb) for _, _, resource, _, verb in everything}
    assert given == asked("webhook/*.py", "certificates/*.py") - {("version", "get")}  # which everybody may


def test_the_check_is_granted_each_call_that_its_code_makes_and_no_other() -> None:
    with_secrets = rights(objects.rendered("--set", "config.imagePullSecrets={registry}"), "carpool-check")
    given = {(resource, verb) for _, _, resource, _, verb in with_secrets}
    # Policies are looked for only where it is not told what the injector's objects are called, and of webhooks only
    # those that change pods. In the cluster pods are reached by their addresses.
    never = {
        ("mutatingadmissionpolicies", "list"),
        ("validatingwebhookconfigurations", "list"),
        ("pods/portforward", "get"),
    }
    policies = {(each.plural, "list") for each in surroundings.POLICIES}
    assert given - policies == asked("diagnosis/*.py") - never - {("version", "get")}


@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_no_right_is_granted_twice(name: str) -> None:
    for account in ("carpool-injector", "carpool-check", "team-a-injector", "team-a-check"):
        found = granted(objects.scenario(name), account)
        everywhere = {right[1:] for right in found if not right[0]}
        assert [right for right in found if found.count(right) > 1] == []
        assert [right for right in found if right[0] and right[1:] in everywhere] == []


def test_the_readme_tells_the_rights_as_they_are() -> None:
    page = pages.README.read_text()
    assert pages.readme(page) == page, "run: python -m tests.charts"
