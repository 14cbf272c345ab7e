"""What is made from the chart is up to date: its README, and the manifest for those without Helm."""

from __future__ import annotations

import pytest

import carpool_injector
from carpool_injector.commands import check
from tests.charts import helm, objects, pages


def test_the_readme_explains_the_values_that_matter_first() -> None:
    page = pages.README.read_text()
    assert pages.readme(page) == page, "run: python -m tests.charts"
    found = {value.path: value for value in pages.values()}
    assert [path for path in pages.FIRST if pages.in_short(found[path].meaning) not in page] == []


def test_every_value_has_a_meaning() -> None:
    assert [value.path for value in pages.values() if not value.meaning.endswith((".", ")"))] == []


def test_the_install_manifest_is_what_the_chart_makes() -> None:
    text, made = pages.INSTALL.read_text(), pages.install()
    if helm.major() == 3:  # which puts kinds that it does not know, policies among them, after all others
        text, made = (str(sorted(objects.parse(each), key=str)) for each in (text, made))
    assert text == made, "run: python -m tests.charts"


def test_the_install_manifest_begins_with_the_namespace_and_has_no_tests() -> None:
    things = objects.parse(pages.INSTALL.read_text())
    assert (things[0]["kind"], things[0]["metadata"]["name"]) == ("Namespace", helm.NAMESPACE)
    assert not any(objects.is_test(thing) for thing in things)
    assert {thing["metadata"].get("namespace", helm.NAMESPACE) for thing in things} == {helm.NAMESPACE}


def notes(*more: str, namespace: str = "ns") -> str:
    if helm.major() == 3:
        pytest.skip("Helm 3 renders notes with a cluster only")
    # `install --dry-run=client` renders the notes, and asks no cluster.
    where = ("--namespace", namespace, "--dry-run=client", "--hide-notes=false")
    return helm.run("install", helm.RELEASE, str(helm.CHART), *where, *more).partition("NOTES:")[2]


def test_the_notes_name_helm_test_where_it_has_something_to_run() -> None:
    assert "helm -n ns test carpool" in notes("--set=check.enabled=true")
    assert "helm -n ns test carpool" not in notes()


def test_the_notes_say_in_which_namespace_no_pod_gets_the_sidecar() -> None:
    assert "No pod in namespace ns gets a sidecar" in notes()
    assert "install the chart into one of its own" not in notes()
    assert "install the chart into one of its own" in notes(namespace="default")


def test_the_notes_name_commands_with_flags_that_exist() -> None:
    said = notes()
    assert "With --set check.enabled=true `helm test` does the same" in said
    assert "rollout status deployment/carpool-injector" in said
    words = said.rpartition("carpool-injector check ")[2].splitlines()[0].split()
    given = check.check.make_context("check", words).params
    assert given["namespace"] == "ns"


def test_the_version_of_the_chart_is_that_of_the_project() -> None:
    (chart,) = objects.parse((helm.CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {carpool_injector.__version__}
