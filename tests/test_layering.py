"""Who may import whom, as data: a lower layer never imports a higher one, and some modules have few importers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("sidecar", "injector", "predictor")
STDLIB = set(sys.stdlib_module_names)
IO = {"asyncio", "http", "logging", "multiprocessing", "selectors", "signal", "socket", "ssl", "subprocess"}
# All that a core of values in, values out needs. Time, randomness and I/O are handed in, not imported.
PURE = {"__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq"}
PURE |= {"itertools", "math", "operator", "types", "typing"}
TEXT = {"base64", "copy", "decimal", "difflib", "hashlib", "json", "re", "textwrap"}


class Layer(NamedTuple):
    """What a module may import: parts of this project, and top-level packages from outside (None: any)."""

    project: set[str]
    outside: set[str] | None = None


WORDS_OF_THE_API = {"injector.api.kube_calls", "injector.api.kube_objects"}

# The longest name that covers a module decides.
LAYERS = {
    "sidecar.errors": Layer(set(), STDLIB),
    "sidecar.settings": Layer(set()),
    "sidecar.agent_flags": Layer(set(), STDLIB - IO),
    "sidecar.logs": Layer(set()),
    "sidecar.memory": Layer(set(), STDLIB),
    "sidecar.lag": Layer(set(), STDLIB),
    "sidecar.drain_command": Layer(set(), STDLIB - {"asyncio", "logging"}),  # both take long to load
    "sidecar.cli": Layer({"sidecar.drain_command", "sidecar.planning", "sidecar.serving"}, STDLIB - IO),
    "sidecar.core": Layer({"sidecar.core", "sidecar.errors"}, PURE),
    "sidecar.planning": Layer({"sidecar.planning", "sidecar.core", "sidecar.errors"}, PURE | {"random"}),
    "sidecar.planning.command": Layer({"sidecar.planning", "sidecar.settings"}, STDLIB - IO),
    "sidecar.wire": Layer({"sidecar.wire", "sidecar.core", "sidecar.errors"}, STDLIB - IO | {"msgspec"}),
    "sidecar.wire.instances": Layer(
        {"sidecar.wire", "sidecar.core", "sidecar.errors"}, STDLIB - IO | {"msgspec", "numpy", "orjson"}
    ),
    # HTTP/2 as such knows neither the rest of the sidecar nor, but for two modules, sockets.
    "sidecar.http2": Layer({"sidecar.http2"}, STDLIB - IO | {"hpack"}),
    "sidecar.http2.protocol": Layer({"sidecar.http2"}, STDLIB),
    "sidecar.http2.server": Layer({"sidecar.http2"}, STDLIB),
    "sidecar.rpc": Layer(
        {f"sidecar.{below}" for below in ("rpc", "http2", "calls", "core", "wire", "errors", "logs", "memory")}
    ),
    "sidecar.rpc.port": Layer({"sidecar"}),
    "sidecar.metrics": Layer({"sidecar.core", "sidecar.wire", "sidecar.errors", "sidecar.logs"}),
    "sidecar.calls": Layer({"sidecar.core", "sidecar.wire", "sidecar.errors"}),
    "sidecar.driver": Layer({f"sidecar.{below}" for below in ("core", "wire", "calls", "errors", "logs", "metrics")}),
    "sidecar.lifecycle": Layer({"sidecar.driver", "sidecar.errors", "sidecar.logs"}),
    "sidecar": Layer({"sidecar"}),
    "injector.core": Layer({"injector.core"}, PURE | TEXT | {"pydantic"}),
    "injector.objects": Layer({"injector.objects", "injector.core"}, PURE | TEXT | {"pydantic_core"}),
    "injector.documents": Layer({"injector.documents"}, STDLIB - IO | {"ruamel", "yaml"}),
    "injector.config_file": Layer({"injector.core"}, STDLIB - IO | {"pydantic", "yaml"}),
    "injector.api": Layer({"injector.api", "injector.core.model"}),
    "injector.certificates": Layer({"injector.certificates"} | WORDS_OF_THE_API),
    "injector.certificates.authority": Layer({"injector.certificates"}, PURE | {"datetime", "cryptography"}),
    "injector.certificates.rotation": Layer({"injector.certificates"}, PURE | {"datetime", "cryptography"}),
    "injector.certificates.trust": Layer({"injector.certificates"}, PURE | {"datetime", "cryptography"}),
    "injector.diagnosis": Layer({"injector.diagnosis", "injector.certificates", "injector.core"} | WORDS_OF_THE_API),
    "injector.webhook": Layer(
        {f"injector.{below}" for below in ("webhook", "certificates", "api", "objects", "core", "config_file")}
    ),
    "injector": Layer({"injector"}),
    "predictor": Layer(
        {"predictor", "sidecar.core", "sidecar.wire", "sidecar.errors", "sidecar.settings", "sidecar.logs"}
    ),
}

# Who alone may import these.
ONLY_IMPORTERS: dict[str, set[str]] = {
    "prometheus_client": {"sidecar.metrics", "sidecar.http.admin", "injector.webhook.metrics"},
    "kubernetes": {"injector.api"},
    "cryptography": {"injector.certificates"},
    "yaml": {"injector.documents", "injector.config_file"},
    "ruamel": {"injector.documents"},
    "click": {"injector.cli", "injector.commands"},
    "injector.commands": {"injector.commands", "injector.cli"},
    "injector.cli": {"injector.__main__"},
    "httptools": {"sidecar.http.heads", "sidecar.upstream.answers"},
    "torch": {"predictor.models"},
    "transformers": {"predictor.models"},
    "hpack": {"sidecar.http2.headers", "sidecar.http2.huffman"},
    "orjson": {"sidecar.wire.instances"},
    "numpy": {"sidecar.rpc", "sidecar.wire.instances", "predictor.models"},
    "tritonclient": {"sidecar.rpc"},
    "sidecar.upstream": {
        "sidecar.upstream",
        "sidecar.http",
        "sidecar.upstreams",
        "sidecar.assembly",
        "sidecar.serving",
    },
    "sidecar.http": {"sidecar.http", "sidecar.assembly", "sidecar.upstreams"},
    "sidecar.http2": {"sidecar.http2", "sidecar.rpc"},
    "sidecar.rpc": {"sidecar.rpc", "sidecar.upstreams", "sidecar.assembly"},
    "sidecar.wire.instances": {"sidecar.wire.instances", "sidecar.upstreams"},
    "sidecar.lifecycle": {"sidecar.http", "sidecar.rpc.port", "sidecar.assembly"},
    "sidecar.upstreams": {"sidecar.assembly"},
    "sidecar.assembly": {"sidecar.serving"},
    "sidecar.serving": {"sidecar.cli"},
    "sidecar.drain_command": {"sidecar.cli"},
    "sidecar.cli": {"sidecar.__main__"},
    "tests": set(),
}


def covers(name: str, module: str) -> bool:
    return module == name or module.startswith(name + ".")


def covered(names: set[str], module: str) -> bool:
    return any(covers(name, module) for name in names)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def imports(source: str) -> Iterator[str]:
    """Dotted names of what is imported anywhere in the source, inside functions and TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def complaint(module: str, imported: str) -> str | None:
    """Why this module may not import that, or None if it may."""
    if imported.startswith("."):
        return f"{module} imports {imported}: relative imports hide the layer, write the full name"
    layer = LAYERS[max((name for name in LAYERS if covers(name, module)), key=len)]
    top = imported.partition(".")[0]
    if top in PACKAGES:
        allowed = covered(layer.project, imported) or imported in {top, f"{top}.__version__"}
    else:
        allowed = layer.outside is None or top in layer.outside
    if not allowed:
        return f"{module} imports {imported}, which is outside its layer"
    for name, importers in ONLY_IMPORTERS.items():
        if covers(name, imported) and not covered(importers, module):
            return f"{module} imports {imported}; only {sorted(importers) or 'nobody'} may"
    return None


def complaints(module: str, source: str) -> list[str]:
    return [text for imported in imports(source) if (text := complaint(module, imported))]


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_layer_allows(module: str) -> None:
    assert complaints(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sidecar.core.backlog", "import asyncio"),
        ("sidecar.core.backlog", "def later():\n    import time"),
        ("sidecar.core.backlog", "from sidecar.wire import v1"),
        ("sidecar.core.backlog", "from sidecar import wire"),
        ("sidecar.core.backlog", "from ..wire import v1"),
        ("sidecar.planning.engine", "import time"),
        ("sidecar.planning.engine", "import numpy"),
        ("sidecar.planning.planner", "import argparse"),
        ("sidecar.planning.command", "import rich"),
        ("sidecar.planning.engine", "from sidecar.wire import v1"),
        ("sidecar.wire.v1", "import socket"),
        ("sidecar.wire.v1", "from aiohttp import web"),
        ("sidecar.errors", "import aiohttp"),
        ("sidecar.settings", "from sidecar import errors"),
        ("sidecar.driver", "from sidecar.upstream import client"),
        ("sidecar.upstream.client", "from sidecar.http import app"),
        ("sidecar.upstream.client", "import prometheus_client"),
        ("sidecar.http.app", "from sidecar import cli"),
        ("sidecar.http.app", "from sidecar import assembly"),
        ("sidecar.upstream.client", "import sidecar.lifecycle"),
        ("sidecar.lifecycle", "from sidecar.http import app"),
        ("injector.core.injection", "import kubernetes"),
        ("injector.core.injection", "import time"),
        ("injector.core.injection", "from sidecar.core import sizes"),
        ("injector.core.injection", "from injector.webhook import server"),
        ("injector.objects.review", "import aiohttp"),
        ("injector.certificates.rotation", "import ssl"),
        ("injector.webhook.server", "from kubernetes.aio import client"),
        ("injector.webhook.server", "from injector.commands import serve"),
        ("predictor.server", "from injector.core import model"),
        ("predictor.server", "import torch.nn"),
        ("predictor.server", "from sidecar import driver"),
        ("predictor.models.minilm", "from sidecar.upstream import client"),
        ("sidecar.cli", "from tests import conftest"),
        ("sidecar.cli", "from sidecar import config"),
        ("sidecar.cli", "import uvloop"),
        ("sidecar.drain_command", "from sidecar import settings"),
        ("sidecar.drain_command", "import asyncio"),
    ],
)
def test_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(complaints(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sidecar.core.backlog", "from collections import deque\nfrom sidecar.core import model"),
        ("sidecar.planning.chance", "import random\nfrom sidecar.core import scheduler"),
        ("sidecar.wire.v1", "import re\nimport msgspec\nfrom sidecar import errors"),
        ("sidecar.http.admin", "import prometheus_client\nfrom sidecar import __version__, driver"),
        ("predictor.models.minilm", "import torch\nfrom sidecar.wire import v1"),
        ("injector.core.injection", "import injector\nimport pydantic\nfrom injector.core import pods"),
        ("injector.webhook.service", "import uvloop\nfrom injector.certificates import keeper"),
        ("sidecar.assembly", "from sidecar import driver, lifecycle\nfrom sidecar.http import app"),
    ],
)
def test_permitted_import_is_let_through(module: str, source: str) -> None:
    assert complaints(module, source) == []
