"""The custom resources that the chart makes, by the fields that their controllers insist on.

Their definitions are not part of Kubernetes' schemas. What is here is from the API references of cert-manager v1 and of
the Prometheus Operator v1: strict where the chart writes something, so that a misspelt member is found.
"""

from __future__ import annotations

from typing import Any

import jsonschema

Object = dict[str, Any]


def _form(required: list[str], **properties: Any) -> Object:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT: Object = {"type": "string", "minLength": 1}
_TEXTS: Object = {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION: Object = {"type": "string", "pattern": r"^(\d+(h|ms|m|s))+$"}
_SELECTOR = _form([], matchLabels=_TEXTS)
_REFERENCE = _form(["name"], name=_TEXT, kind={"enum": ["Issuer", "ClusterIssuer"]}, group=_TEXT)
_ENDPOINTS = {
    "type": "array",
    "minItems": 1,
    "items": _form(["port"], port=_TEXT, path={"type": "string", "pattern": "^/"}, interval=_DURATION),
}
_RULE = _form(
    ["alert", "expr", "for", "labels", "annotations"],
    alert={"type": "string", "pattern": "^Carpool[A-Za-z]+$"},
    expr=_TEXT,
    **{"for": _DURATION},
    labels=_form(["severity"], severity={"enum": ["critical", "warning"]}),
    annotations=_form(["summary", "description"], summary=_TEXT, description=_TEXT),
)
_SPECS = {
    ("cert-manager.io/v1", "Certificate"): _form(
        ["secretName", "issuerRef", "privateKey", "duration"],
        secretName=_TEXT,
        issuerRef=_REFERENCE,
        isCA={"type": "boolean"},
        commonName={"type": "string", "maxLength": 64},
        dnsNames={"type": "array", "items": _TEXT, "minItems": 1},
        duration=_DURATION,
        renewBefore=_DURATION,
        usages={"type": "array", "items": {"enum": ["digital signature", "server auth"]}},
        privateKey=_form(
            ["algorithm", "size"],
            algorithm={"const": "ECDSA"},
            size={"enum": [256, 384, 521]},
            rotationPolicy={"enum": ["Always", "Never"]},
        ),
    ),
    ("cert-manager.io/v1", "Issuer"): {
        "oneOf": [
            _form(["selfSigned"], selfSigned={"const": {}}),
            _form(["ca"], ca=_form(["secretName"], secretName=_TEXT)),
        ]
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _form(
        ["selector", "endpoints"], selector=_SELECTOR, endpoints=_ENDPOINTS
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _form(
        ["selector", "podMetricsEndpoints"],
        selector=_SELECTOR,
        namespaceSelector=_form(["any"], any={"type": "boolean"}),
        podMetricsEndpoints=_ENDPOINTS,
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _form(
        ["groups"],
        groups={
            "type": "array",
            "minItems": 1,
            "items": _form(["name", "rules"], name=_TEXT, rules={"type": "array", "minItems": 1, "items": _RULE}),
        },
    ),
}


def is_custom(thing: Object) -> bool:
    """Whether Kubernetes itself knows nothing of this kind."""
    return (thing["apiVersion"], thing["kind"]) in _SPECS


def problems(thing: Object) -> list[str]:
    """Where the object leaves what its controller takes; [] if nowhere."""
    found = jsonschema.Draft202012Validator(_SPECS[thing["apiVersion"], thing["kind"]]).iter_errors(thing["spec"])
    return [f"{error.json_path}: {error.message[:200]}" for error in found]
