"""What mode policy takes from the injector, as templates of the chart: what comes into a pod, and what settings may be.

And by which words and variables servers are told of other addresses than the pod's. So the policy has no knowledge of
its own of these. `python -m tests.charts` writes the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pydantic
from ruamel.yaml import YAML

from carpool_injector.core import config, injection, list_servers, model, servers
from carpool_injector.core.settings import Settings
from tests.charts import helm, policy_cases

Object = dict[str, Any]

TEMPLATE = helm.CHART / "templates" / "_injected.tpl"
# Settings that become a flag of the sidecar and nothing else.
_SETTINGS = (
    "max-batch-size", "max-latency", "timeout", "policy", "slo", "max-in-flight", "max-batch-bytes",
    "small-batch-threshold", "priority-ageing", "max-queue-instances", "kserve-errors", "server-timing", "keep-alive",
    "head-timeout", "max-connections", "connect-timeout", "unknown-models", "predictor-health-path", "log-level",
    "log-format",
)  # fmt: skip
# Narrower than the injector: a window shorter than any timeout, with which nothing contradicts another setting, and no
# character that Kubernetes expands.
_NARROWER = {
    "max-latency": "(0|[1-9][0-9]{0,2})([.][0-9]{0,2}[1-9])?", "predictor-health-path": "/[A-Za-z0-9._~/-]{0,255}",
}  # fmt: skip
_MOST_DIGITS = 12

# By which programs of any kind are told of an address or of TLS; what follows is the servers' own.
_USUAL_WORDS = ("--?[a-z_.-]*(addr|bind|cert|host|https|key|listen|ssl|tls)", "[^ ]*(127[.]|::1|localhost)")
_USUAL_VARIABLES = (".*(SSL|TLS).*", ".*Kestrel__.*", "CONSUL_REDIRECT_TRAFFIC_CONFIG")
_OWN_GRPC = ("TensorFlow Serving", "TorchServe")  # servers with a port for gRPC of a protocol of their own
_SAYS_WHERE: tuple[servers.Kind, ...] = ("host", "address", "urls", "elsewhere", "flags", "positional")

# What the admin decides is made from these values, which stand nowhere else, and becomes an action of the template.
_ADMIN = config.Config(image="IMAGE", image_pull_policy="Never", run_as_user=65531, port=61081, admin_port=61082)
_ACTIONS = {
    "IMAGE": "{{ $config.image | quote }}",
    "Never": '{{ $config.imagePullPolicy | default "" | quote }}',
    "65531": "{{ with $config.runAsUser }}{{ int64 . }}{{ else }}null{{ end }}",
    "61081": "{{ int $config.port }}",
    "61082": "{{ int $config.adminPort }}",
    "REQUESTS": "{{ toJson $given.requests }}",
    "LIMITS": '{{ toJson (empty $given.limits.cpu | ternary (omit $given.limits "cpu") $given.limits) }}',
    "GUARANTEED": "{{ toJson $given.guaranteed }}",
}
_TEXT = """\
{{{{/* What mode policy takes from the injector. Made by python -m tests.charts. */}}}}

{{{{/* Settings that it knows, as annotations, in the order of the sidecar's flags. */}}}}
{{{{- define "carpool.policyKeys" -}}}}
{keys}
{{{{- end -}}}}

{{{{/* What each may be. Values that the injector would write in another way (05, 1.50) are none. */}}}}
{{{{- define "carpool.policySettings" -}}}}
{forms}
{{{{- end -}}}}

{{{{/* The same as one expression, with what else a pod may say. */}}}}
{{{{- define "carpool.policyForms" -}}}}
{flags}
{{{{- end -}}}}

{{{{/* Words of a command line, and images, of which an injector knows what a policy does not. */}}}}
{{{{- define "carpool.policyWords" -}}}}
{words}
{{{{- end -}}}}

{{{{/* Likewise variables. */}}}}
{{{{- define "carpool.policyVariables" -}}}}
{variables}
{{{{- end -}}}}

{{{{/* A pod with all that the injector puts into one by the takeover named-port, but for what depends on the pod. The
     annotations are the admin's defaults. The container `app` stands for a pod's own, with the hook that it gets, and
     with the resources of a sidecar in a pod of the class Guaranteed. */}}}}
{{{{- define "carpool.injectedPod" -}}}}
{{{{- $config := include "carpool.config" . | fromYaml -}}}}
{{{{- $given := $config.resources -}}}}
metadata:
  annotations:
    carpool.dev/takeover: named-port
    {{{{- range $key, $value := $config.defaults }}}}
    carpool.dev/{{{{ $key }}}}: {{{{ $value | quote }}}}
    {{{{- end }}}}
{spec}
{{{{- end -}}}}

{{{{/* The same as an object, whose annotation says what a status is like. */}}}}
{{{{- define "carpool.injected" -}}}}
{{{{- $config := .Values.config -}}}}
{{{{- $pod := include "carpool.injectedPod" . -}}}}
{{{{- $secrets := default list $config.imagePullSecrets | toJson -}}}}
apiVersion: v1
kind: PodTemplate
metadata:
  name: {{{{ include "carpool.name" . }}}}-policy
  namespace: {{{{ .Release.Namespace }}}}
  labels:
    {{{{- include "carpool.labels" . | nindent 4 }}}}
  annotations:
    status: {status}
template:
  {{{{- $pod | nindent 2 }}}}
{{{{- end -}}}}
"""


def text() -> str:
    """The templates' text."""
    forms = {name: _form(name) for name in _order()}
    return _TEXT.format(
        keys=json.dumps([model.PREFIX + name for name in forms]),
        forms="\n".join(f"{name}: {json.dumps(form)}" for name, form in forms.items()),
        flags="|".join([*(f"{name}=({form})" for name, form in forms.items()), "(inject|port|takeover)=.*"]),
        words=f"({'|'.join(_words())})",
        variables=f"^({'|'.join((*_USUAL_VARIABLES, *_variables()))})$",
        **_of_pod(),
    )


def _order() -> Iterator[str]:
    names = (str(info.alias) for info in Settings.model_fields.values())
    return (name for name in names if name in _SETTINGS)


def _form(name: str) -> str:
    """What the injector takes and writes as it is: its own words, or numbers of so many digits as are always right."""
    if name in _NARROWER:
        return _NARROWER[name]
    pattern = Settings.model_json_schema(by_alias=True)["properties"][name]["pattern"]
    words = pattern.removeprefix("^(").removesuffix(")$")
    if words.replace("|", "").isalpha():
        return words
    digits = max(count for count in range(1, _MOST_DIGITS + 1) if _is_taken(name, "9" * count))
    return f"{'0|' if _is_taken(name, '0') else ''}[1-9][0-9]{{0,{digits - 1}}}"


def _is_taken(name: str, value: str) -> bool:
    with contextlib.suppress(pydantic.ValidationError):
        return bool(Settings.model_validate({name: value}))
    return False


def _names() -> list[str]:
    """All that says of a server that it listens on another address than the pod's, or that it speaks TLS."""
    listeners = [each for server in servers.SERVERS for each in (server.http, server.grpc) if each]
    found = [name for each in listeners for name in (*each.names(*_SAYS_WHERE), *each.tls, *each.mutual_tls)]
    return sorted({*found, *(flag for each in list_servers.LIST_SERVERS for flag in (*each.flags, *each.without))})


def _grpc_servers() -> list[servers.Server]:
    return [server for server in servers.SERVERS if server.grpc or server.title in _OWN_GRPC]


def _words() -> Iterator[str]:
    """Expressions for what stands behind a blank, in a text of an image's name and words."""
    flags = [name for name in _names() if name.startswith("-")]
    usual = re.compile("|".join(_USUAL_WORDS), re.IGNORECASE)
    long = [name.replace(".", "[.]") for name in flags if len(name) > 2 and not usual.match(name)]
    yield f" -[{''.join(name[1] for name in flags if len(name) == 2)}]"
    yield f" ({'|'.join((*_USUAL_WORDS, *long))})"
    yield from (f" {name} " for name in _names() if name.islower() and not name.startswith("-"))
    yield from sorted({name for server in _grpc_servers() for name in (*server.programs, *server.images)})


def _variables() -> list[str]:
    usual = re.compile("|".join(_USUAL_VARIABLES))
    marks = [mark for server in _grpc_servers() for mark in server.marks]
    names = [name for name in (*_names(), *marks) if name.isupper() and name[0] != "-" and not usual.fullmatch(name)]
    return sorted(set(names))


def _of_pod() -> dict[str, str]:
    outcome = injection.inject(policy_cases.DONE["plain"], _ADMIN, model.Namespace("models"), model.Capabilities())
    [app], [sidecar], [volume] = (outcome.pod["spec"][key] for key in ("containers", "initContainers", "volumes"))
    args = [word for word in sidecar["args"] if not word.startswith("--component-port=")]
    ours = {key: value for key, value in sidecar.items() if key != "env"}
    ports = [{**sidecar["ports"][0], "name": "carpool-http"}, *sidecar["ports"][1:]]
    resources = {"requests": "REQUESTS", "limits": "LIMITS"}
    hooked = {
        "name": "app",
        "image": "IMAGE",
        "lifecycle": app["lifecycle"],
        "resources": {"requests": "GUARANTEED", "limits": "GUARANTEED"},
    }
    spec = {
        "initContainers": [{**ours, "args": args, "ports": ports, "resources": resources}],
        "containers": [{**hooked, "securityContext": sidecar["securityContext"]}],
        "volumes": [volume],
    }
    versions = {"version": "{{ .Chart.AppVersion }}", "config": "{{ print $pod $secrets | sha256sum | trunc 8 }}"}
    status = {**(outcome.status or {}), **versions, "container": "CONTAINER", "appPort": "NUMBER"}
    written = json.dumps(status, separators=(",", ":")).replace('"NUMBER"', "NUMBER").removesuffix("}")
    return {
        "status": _with_actions(f"'{written}SECRETS}}'"),
        "spec": _with_actions(_yaml({"spec": spec})).rstrip(),
    }


def _yaml(thing: Object) -> str:
    stream, yaml = io.StringIO(), YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _: True
    yaml.dump(thing, stream)
    return stream.getvalue()


def _with_actions(text: str) -> str:
    for word, action in _ACTIONS.items():
        text = text.replace(word, action)
    return text
