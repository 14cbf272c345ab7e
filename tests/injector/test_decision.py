"""Who may ask for the sidecar, and who wins: the whole truth table."""

from __future__ import annotations

import itertools

import pytest

from carpool_injector.core import decision, model, pods
from carpool_injector.core.config import Config

KEY = "carpool.dev/inject"


def asked(label=None, annotation=None, namespace=None, batcher=False, chart="leave", wish=None, predictor=True):
    annotations = {KEY: annotation} if annotation is not None else {}
    if batcher:
        annotations["internal.serving.kserve.io/batcher"] = "true"
    pod = {
        "metadata": {"labels": {KEY: label} if label is not None else {}, "annotations": annotations},
        "spec": {"containers": [{"name": "app"}]},
    }
    labels = {KEY: namespace} if namespace is not None else {}
    if wish is not None:
        labels["carpool.dev/kserve-batcher"] = wish
    found = model.Namespace("ml", labels)
    return decision.Asked(pods.read(pod), found, Config(kserve_batcher=chart), lambda _: predictor)


POD_WORDS, NAMESPACE_WORDS = [None, "true", "false"], [None, "enabled", "disabled"]


@pytest.mark.parametrize(
    ("label", "annotation", "namespace", "batcher", "chart"),
    list(itertools.product(POD_WORDS, POD_WORDS, NAMESPACE_WORDS, [False, True], ["leave", "takeover"])),
)
def test_the_first_who_says_something_decides(label, annotation, namespace, batcher, chart):
    decided = decision.who_asks(asked(label, annotation, namespace, batcher, chart))
    said = [
        {"true": True, "false": False}.get(label),
        {"true": True, "false": False}.get(annotation),
        {"enabled": True, "disabled": False}.get(namespace),
        True if batcher and chart == "takeover" else None,
    ]
    answers = [answer for answer in said if answer is not None]
    assert decided.inject is (answers[0] if answers else False)
    assert decided.concerned is bool(answers)
    assert decided.explicit is (said[0] is not None or said[1] is not None)


@pytest.mark.parametrize(
    ("wish", "chart", "inject"),
    [(None, "takeover", True), (None, "leave", False), ("leave", "takeover", False), ("takeover", "leave", True)],
)
def test_the_namespace_overrules_the_chart_about_kserves_batcher(wish, chart, inject):
    assert decision.who_asks(asked(batcher=True, wish=wish, chart=chart)).inject is inject


@pytest.mark.parametrize("value", ["True", "yes", " true ", "1", "", "on", "enabled", "TRUE"])
@pytest.mark.parametrize("place", ["label", "annotation"])
def test_another_word_on_a_pod_is_no_answer_but_an_error_that_names_the_words(place, value):
    with pytest.raises(
        decision.BadWord, match=rf'{place} carpool.dev/inject: got .*: must be "true" or "false"'
    ) as bad:
        decision.who_asks(asked(**{place: value}))
    assert bad.value.decision.explicit


def test_another_word_on_the_namespace_is_the_namespaces_error():
    with pytest.raises(decision.BadWord, match="of the namespace: got 'on'") as bad:
        decision.who_asks(asked(namespace="on"))
    assert not bad.value.decision.explicit


@pytest.mark.parametrize("namespace", ["enabled", "true"])
def test_a_namespace_means_its_predictors_and_not_its_databases(namespace):
    assert decision.who_asks(asked(namespace=namespace, predictor=True)).inject
    refused = decision.who_asks(asked(namespace=namespace, predictor=False))
    assert (refused.inject, refused.reason) == (False, "not-a-predictor")


def test_a_pod_that_asks_itself_need_not_be_a_predictor():
    assert decision.who_asks(asked(label="true", predictor=False)).inject


def test_label_and_annotation_that_disagree_are_told():
    assert list(decision.conflicts(asked(label="true", annotation="false"))) == [
        "label and annotation carpool.dev/inject disagree; the label (true) counts"
    ]
    assert list(decision.conflicts(asked(label="true", annotation="true"))) == []
