"""What the commands tell of an object and make of it: the explanation, the injection, and what changes nothing."""

from __future__ import annotations

from carpool_injector.core import model
from carpool_injector.objects import explanation, manifests, workloads
from tests.injector.object_samples import ASKS, deployment, template

# --- Explanations


def test_a_setting_of_the_namespace_is_shown_with_its_source_and_one_row_decides() -> None:
    namespace = model.Namespace("ml", {"carpool.dev/inject": "enabled"}, {"carpool.dev/slo": "50"})
    found = explanation.explain(deployment(template()), manifests.Injector(namespace=namespace))
    assert found is not None
    assert [(each.key, each.value, each.source) for each in found.settings] == [
        ("carpool.dev/slo", "50", "namespace ml")
    ]
    assert [row.decides for row in found.rows] == [True, False, False, False]


def test_the_namespace_of_a_template_counts_and_the_others_labels_hold_there_too() -> None:
    injector = manifests.Injector(namespace=model.Namespace("ml", {"carpool.dev/inject": "enabled"}))
    found = explanation.explain(deployment(template({}, **{"carpool.dev/policy": "auto"}), namespace="other"), injector)
    assert found is not None
    assert (found.namespace, found.result) == ("other", "injected")


def test_an_explanation_tells_a_refusal_once() -> None:
    thing = deployment({"metadata": {"labels": ASKS}, "spec": {"containers": [{"name": "app"}]}})
    found = explanation.explain(thing, manifests.Injector())
    assert found is not None
    assert found.refusal is not None
    assert found.warnings == ()


def test_a_wish_in_other_words_is_explained_as_the_refusal_that_it_is() -> None:
    found = explanation.explain(deployment(template(labels={"carpool.dev/inject": "yes"})), manifests.Injector())
    assert found is not None
    assert (found.result, found.asked, found.plan) == ("refused", True, None)


def test_the_namespace_that_a_template_names_is_the_pods() -> None:
    thing = deployment(template(), namespace="outer")
    thing["spec"]["template"]["metadata"]["namespace"] = "inner"
    found = explanation.explain(thing, manifests.Injector())
    assert found is not None
    assert found.namespace == "inner"


# --- Manifests


def test_what_says_no_by_its_annotation_is_skipped_and_its_label_counts_before_that() -> None:
    no = template(labels={}, **{"carpool.dev/inject": "false"})
    _, report = manifests.inject(deployment(no), manifests.Injector())
    assert report is not None
    assert report.result == "skipped"
    no["metadata"]["labels"] = ASKS
    _, report = manifests.inject(deployment(no), manifests.Injector())
    assert report is not None
    assert report.result == "injected"


def test_annotations_of_the_command_count_before_the_manifests() -> None:
    thing = deployment(template(**{"carpool.dev/slo": "1"}))
    after, _ = manifests.inject(thing, manifests.Injector(annotations={"carpool.dev/slo": "2"}))
    assert after["spec"]["template"]["metadata"]["annotations"]["carpool.dev/slo"] == "2"


def test_injecting_again_is_told_as_unchanged_with_the_same_object() -> None:
    once, _ = manifests.inject(deployment(template()), manifests.Injector())
    twice, report = manifests.inject(once, manifests.Injector())
    assert twice is once
    assert report is not None
    assert report.result == "unchanged"


def test_an_object_that_only_has_a_generated_name_is_called_by_it() -> None:
    thing = {"kind": "Pod", "metadata": {"generateName": "web-"}}
    assert workloads.describe(thing) == "Pod/web-"


def test_a_list_in_which_nothing_changes_is_the_same_list() -> None:
    held = {"apiVersion": "v1", "kind": "List", "items": [{"kind": "ConfigMap", "apiVersion": "v1"}]}
    after, reports = manifests.apply(held, lambda each: manifests.inject(each, manifests.Injector()))
    assert after is held
    assert reports == []
