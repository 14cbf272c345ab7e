"""Which namespaces a webhook is for, as the API server reads its registration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from carpool_injector.core import model

_NAME_LABEL = "kubernetes.io/metadata.name"


def reached(registration: model.Object | None, known: Iterable[model.Namespace]) -> Mapping[str, model.Namespace]:
    """Those of the known namespaces whose pods are sent to it, by name; all of them where there is no registration."""
    entries = (registration or {}).get("webhooks") or [{}]
    terms = (entries[0].get("namespaceSelector") or {}).get("matchExpressions") or ()
    return {each.name: each for each in known if _matches(terms, each)}


def _matches(terms: Iterable[model.Object], namespace: model.Namespace) -> bool:
    labels = {_NAME_LABEL: namespace.name, **namespace.labels}
    for term in terms:
        value, values = labels.get(str(term.get("key"))), term.get("values") or ()
        fits = {
            "In": value in values,
            "NotIn": value is None or value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits.get(str(term.get("operator")), True):
            return False
    return True
