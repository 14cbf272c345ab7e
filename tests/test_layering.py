"""Who may import whom, as data: a lower layer never imports a higher one, and some modules have few importers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "carpool": ROOT,
    "carpool_sidecar": ROOT / "sidecar",
    "carpool_injector": ROOT / "injector",
    "carpool_predictor": ROOT / "predictor",
}
PACKAGES = tuple(FOLDERS)
STDLIB = set(sys.stdlib_module_names)
IO = {"asyncio", "http", "logging", "multiprocessing", "selectors", "signal", "socket", "ssl", "subprocess"}
# All that a core of values in, values out needs. Time, randomness and I/O are handed in, not imported.
PURE = {"__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq"}
PURE |= {"itertools", "math", "operator", "types", "typing"}
TEXT = {"base64", "copy", "decimal", "difflib", "hashlib", "json", "re", "shlex", "textwrap"}


class Layer(NamedTuple):
    """What a module may import: parts of this project, and top-level packages from outside (None: any)."""

    project: set[str]
    outside: set[str] | None = None


WORDS_OF_THE_API = {"carpool_injector.api.calls"}
BELOW_BATCHING = {
    "carpool",
    "carpool_sidecar.errors",
    "carpool_sidecar.protocols",
    "carpool_sidecar.metrics",
    "carpool_sidecar.config",
    "carpool_sidecar.recording.ring",
    "carpool_sidecar.turns",
    "carpool_sidecar.files",
    "carpool_sidecar.caches",
}
REMEMBERED = {"carpool_sidecar.caches"}
FOR_THE_COMPILER = {"carpool.compiled.mypyc_attr"}
LIVE_CLIENT = {"carpool_sidecar.admin_client", "carpool_sidecar.live.events_client"}

# The longest name that covers a module decides.
LAYERS = {
    "carpool": Layer({"carpool"}, STDLIB),
    "carpool.compiled": Layer(set(), STDLIB | {"mypy_extensions"}),
    "carpool.errors": Layer(set(), PURE),
    "carpool.measures": Layer(set(), PURE),
    "carpool.prometheus": Layer({"carpool"}, {"__future__", "collections", "typing", "prometheus_client"}),
    "carpool.otel": Layer({"carpool"}, {"__future__", "collections", "contextvars", "time", "typing", "opentelemetry"}),
    "carpool.scheduling": Layer({"carpool.scheduling", "carpool.errors"}, PURE),
    "carpool.runtime": Layer({"carpool.runtime", "carpool.scheduling", "carpool.errors"}, STDLIB),
    "carpool.runtime.spans": Layer(
        {"carpool.runtime.driver", "carpool.scheduling.messages", "carpool.errors"},
        STDLIB - IO | {"logging", "opentelemetry"},
    ),
    "carpool.workers": Layer({"carpool.workers", "carpool.errors"}, STDLIB | {"torch"}),
    "carpool.functions": Layer(
        {
            *(f"carpool.{below}" for below in ("functions", "runtime", "scheduling", "workers")),
            "carpool.errors",
            "carpool.measures",
        },
        STDLIB,
    ),
    "carpool.functions.merging": Layer({"carpool.functions.errors"}, PURE),
    # The array libraries come with the users' arrays, which lead to them: they are never imported.
    "carpool.functions.array_structures": Layer({"carpool.functions.errors"}, PURE | {"sys"}),
    "carpool.functions.arrays": Layer(
        {"carpool.functions.array_structures", "carpool.functions.errors"}, PURE | {"numbers"}
    ),
    "carpool.program": Layer({"carpool.program"}),
    "carpool.program.allocator": Layer(set(), STDLIB),
    "carpool.program.model_servers": Layer(set(), PURE),
    "carpool.program.shared_names": Layer(set(), PURE | TEXT),
    "carpool.program.signals": Layer(set(), STDLIB),
    "carpool_sidecar": Layer({"carpool_sidecar", "carpool"}),
    "carpool_sidecar.planning": Layer(
        {"carpool_sidecar.planning", "carpool.scheduling", "carpool.errors"}, PURE | {"random"}
    ),
    **dict.fromkeys(
        (f"carpool_sidecar.planning.{module}" for module in ("recorded", "replay", "fitting", "advice")),
        Layer(
            {
                *(f"carpool_sidecar.{room}" for room in ("planning", "recording.document")),
                *(f"carpool.{room}" for room in ("scheduling", "errors", "measures")),
            },
            PURE | {"random"},
        ),
    ),
    **dict.fromkeys(
        (f"carpool_sidecar.planning.{module}" for module in ("command", "arguments", "advise_text")),
        Layer(
            {
                "carpool_sidecar.planning",
                "carpool_sidecar.recording.document",
                "carpool_sidecar.protocols.lists.rules",
                "carpool_sidecar.protocols.pairs",
                "carpool.program.settings",
                "carpool.scheduling.own_time",
            },
            STDLIB - IO | {"msgspec"},
        ),
    ),
    # What a predictor's answers mean: values in, words out.
    "carpool_sidecar.doctor": Layer(
        {
            *(f"carpool_sidecar.{room}" for room in ("doctor", "planning.probing", "protocols.models")),
            "carpool_sidecar.protocols.lists.rules",
            "carpool.program.model_servers",
        },
        PURE | TEXT | {"msgspec"},
    ),
    "carpool_sidecar.planning.probing": Layer(
        {"carpool_sidecar.planning", "carpool.scheduling", "carpool.errors"}, PURE | {"json", "random"}
    ),
    "carpool_sidecar.recording.ring": Layer(
        {"carpool.scheduling.messages", "carpool.errors", "carpool.measures"}, PURE | {"array", "struct"}
    ),
    "carpool_sidecar.recording.document": Layer(
        {"carpool_sidecar.recording.ring", "carpool.measures"}, PURE | {"msgspec"}
    ),
    "carpool_sidecar.recording.file": Layer({"carpool_sidecar.recording", "carpool.program.logs"}, STDLIB),
    "carpool_sidecar.errors": Layer({"carpool.errors"}, PURE),
    "carpool_sidecar.caches": Layer(set(), PURE | {"weakref"}),
    "carpool_sidecar.protocols": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED,
        STDLIB - IO | {"msgspec"},
    ),
    "carpool_sidecar.protocols.lists": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED,
        PURE | TEXT | {"msgspec", "sys"},
    ),
    "carpool_sidecar.protocols.lists.rules": Layer(
        {"carpool_sidecar.protocols.lists.places"},
        PURE | TEXT | {"importlib", "msgspec", "pathlib", "pydantic", "ruamel"},
    ),
    "carpool_sidecar.protocols.tensors_from_v1": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED,
        STDLIB - IO | {"msgspec", "numpy", "orjson"},
    ),
    "carpool_sidecar.protocols.tensors_from_embeddings": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED,
        PURE | TEXT | {"msgspec", "numpy", "orjson"},
    ),
    "carpool_sidecar.protocols.tensors_from_pairs": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED,
        PURE | TEXT | {"msgspec", "numpy", "orjson", "sys"},
    ),
    "carpool_sidecar.protocols.pairs": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"},
        PURE | TEXT | {"msgspec", "sys", "urllib"},
    ),
    "carpool_sidecar.protocols.v2_grpc": Layer(
        {"carpool_sidecar.protocols", "carpool.scheduling", "carpool.errors", "carpool_sidecar.errors"} | REMEMBERED
    ),
    "carpool_sidecar.metrics": Layer(
        {
            "carpool_sidecar.caches",
            "carpool_sidecar.protocols",
            "carpool.scheduling",
            "carpool.errors",
            "carpool.measures",
            "carpool_sidecar.errors",
            "carpool.program.logs",
        }
    ),
    "carpool_sidecar.batching": Layer({"carpool_sidecar.batching"} | BELOW_BATCHING),
    "carpool_sidecar.upstream": Layer({"carpool_sidecar.upstream", "carpool_sidecar.batching"} | BELOW_BATCHING),
    "carpool_sidecar.tracing": Layer(
        {"carpool_sidecar.batching", "carpool.runtime"} | BELOW_BATCHING, STDLIB | {"opentelemetry"}
    ),
    "carpool_sidecar.files": Layer(set(), STDLIB),
    "carpool_sidecar.turns": Layer({"carpool_sidecar.protocols.steps", "carpool_sidecar.errors"}, STDLIB),
    "carpool_sidecar.drain": Layer({"carpool.scheduling.ledger", "carpool_sidecar.errors"}, STDLIB),
    "carpool_sidecar.live": Layer(
        {"carpool_sidecar.live", "carpool_sidecar.batching", "carpool_sidecar.planning.probing"} | BELOW_BATCHING
    ),
    "carpool_sidecar.live.page": Layer(set(), STDLIB - IO),
    # Programs beside a serving one: what takes long to load stays away.
    "carpool_sidecar.admin_client": Layer(set(), STDLIB - {"asyncio", "logging"}),  # both take long to load
    "carpool_sidecar.live.events_client": Layer({"carpool_sidecar.admin_client"}, STDLIB - {"asyncio", "logging"}),
    "carpool_sidecar.live.tap_command": Layer(LIVE_CLIENT, STDLIB - IO),
    "carpool_sidecar.live.top_command": Layer({"carpool_sidecar.live.top_view"} | LIVE_CLIENT, STDLIB - IO | {"rich"}),
    "carpool_sidecar.live.top_view": Layer({"carpool_sidecar.admin_client"}, STDLIB - IO | {"rich"}),
    "carpool_sidecar.server": Layer(
        {f"carpool_sidecar.{below}" for below in ("server", "batching", "upstream", "drain", "live")} | BELOW_BATCHING
    ),
    # HTTP/2 as such knows neither the rest of the sidecar nor, but for one module, sockets.
    "carpool_sidecar.server.http2": Layer(
        {"carpool_sidecar.server.http2", "carpool.scheduling.ledger"} | REMEMBERED, STDLIB - IO | {"hpack"}
    ),
    "carpool_sidecar.server.http2.server": Layer(
        {
            "carpool_sidecar.server.http2",
            "carpool_sidecar.server.listening",
            "carpool.scheduling.ledger",
            "carpool.runtime",
        },
        STDLIB,
    ),
    "carpool_sidecar.config": Layer(
        {
            "carpool_sidecar.planning.probing",
            "carpool_sidecar.protocols.interface",
            "carpool_sidecar.protocols.lists.room",
            "carpool_sidecar.protocols.lists.rules",
            "carpool_sidecar.protocols.pairs.destinations",
            "carpool.program.shared_names",
            "carpool_sidecar.batching.retried_statuses",
            "carpool_sidecar.batching.row_shapes",
            "carpool",
        }
    ),
    "carpool_sidecar.app.drain_command": Layer({"carpool_sidecar.admin_client"}, STDLIB - IO),
    "carpool_sidecar.app.cli": Layer(
        {
            *(
                f"carpool_sidecar.app.{word}"
                for word in (
                    "drain_command",
                    "advise_command",
                    "lists_command",
                    "probe_command",
                    "doctor_command",
                    "process",
                )
            ),
            "carpool_sidecar.planning",
            "carpool_sidecar.live",
            "carpool.program.signals",
        },
        STDLIB - IO,
    ),
    "carpool_injector": Layer({"carpool_injector"}),
    "carpool_injector.__main__": Layer({"carpool_injector.cli", "carpool.program.signals"}),
    "carpool_injector.core": Layer({"carpool_injector.core"}, PURE | TEXT | {"pydantic"}),
    "carpool_injector.core.settings": Layer(
        {"carpool_injector.core", "carpool.program.shared_names"}, PURE | TEXT | {"pydantic"}
    ),
    **dict.fromkeys(
        ("carpool_injector.core.servers", "carpool_injector.core.list_servers"),
        Layer({"carpool_injector.core", "carpool.program.model_servers"}, PURE | TEXT | {"pydantic"}),
    ),
    "carpool_injector.core.plain_yaml": Layer(set(), PURE | TEXT | {"yaml"}),
    "carpool_injector.objects": Layer(
        {"carpool_injector.objects", "carpool_injector.core"}, PURE | TEXT | {"pydantic_core"}
    ),
    "carpool_injector.documents": Layer({"carpool_injector.documents"}, STDLIB - IO | {"ruamel", "yaml"}),
    "carpool_injector.config_file": Layer({"carpool_injector.core"}, STDLIB - IO | {"pydantic", "yaml"}),
    "carpool_injector.rounds": Layer(set(), PURE | {"asyncio"}),
    "carpool_injector.api": Layer({"carpool_injector.api", "carpool_injector.core.model"}),
    "carpool_injector.certificates": Layer(
        {"carpool_injector.certificates", "carpool_injector.rounds"} | WORDS_OF_THE_API
    ),
    "carpool_injector.certificates.certificate_controller": Layer(
        {"carpool_injector.certificates", "carpool_injector.api"}
    ),
    "carpool_injector.certificates.pki": Layer({"carpool_injector.certificates"}, PURE | {"datetime", "cryptography"}),
    "carpool_injector.certificates.rotation": Layer(
        {"carpool_injector.certificates"}, PURE | {"base64", "binascii", "datetime", "cryptography"}
    ),
    "carpool_injector.diagnosis": Layer(
        {
            "carpool_injector.diagnosis",
            "carpool_injector.certificates",
            "carpool_injector.core",
            "carpool_injector.objects",
        }
        | WORDS_OF_THE_API
    ),
    "carpool_injector.webhook": Layer(
        {
            *(f"carpool_injector.{below}" for below in ("webhook", "certificates", "api", "objects", "core")),
            "carpool_injector.config_file",
            "carpool_injector.rounds",
            "carpool.program",
        }
    ),
    "carpool_predictor": Layer({"carpool_predictor", "carpool.program", "carpool.workers"}),
}

# Who alone may import these.
ONLY_IMPORTERS: dict[str, set[str]] = {
    "prometheus_client": {
        "carpool.prometheus",
        "carpool_sidecar.metrics",
        "carpool_sidecar.server.admin",
        "carpool_injector.webhook.metrics",
    },
    "opentelemetry": {"carpool.otel", "carpool.runtime.spans", "carpool_sidecar.tracing"},
    "carpool.runtime.spans": {"carpool.otel", "carpool_sidecar.tracing"},
    "carpool_sidecar.tracing": {"carpool_sidecar.app.wiring", "carpool_sidecar.app.process"},
    "kubernetes": {"carpool_injector.api"},
    "cryptography": {"carpool_injector.certificates"},
    "yaml": {"carpool_injector.documents", "carpool_injector.config_file", "carpool_injector.core.plain_yaml"},
    "ruamel": {"carpool_injector.documents", "carpool_sidecar.protocols.lists.rules"},
    "click": {"carpool_injector.cli", "carpool_injector.commands"},
    "carpool_injector.commands": {"carpool_injector.commands"},  # the command line loads them by name
    "carpool_injector.cli": {"carpool_injector.__main__", "carpool_injector.commands"},
    "httptools": {
        "carpool_sidecar.server.http1.messages",
        "carpool_sidecar.upstream.connection",
    },
    "rich": {"carpool_sidecar.live.top_command", "carpool_sidecar.live.top_view"},
    "carpool_sidecar.live": {"carpool_sidecar.live", "carpool_sidecar.server", "carpool_sidecar.app"},
    "torch": {"carpool_predictor.models", "carpool.workers.payload"},
    "transformers": {"carpool_predictor.models"},
    "hpack": {"carpool_sidecar.server.http2.headers"},
    "orjson": {
        "carpool_predictor.vectors",
        "carpool_sidecar.protocols.tensors_from_embeddings",
        "carpool_sidecar.protocols.tensors_from_pairs",
        "carpool_sidecar.protocols.tensors_from_v1",
    },
    "numpy": {"carpool_sidecar.protocols", "carpool_predictor.models"},
    "tritonclient": {"carpool_sidecar.protocols.v2_grpc", "carpool_sidecar.upstream"},
    "carpool_sidecar.upstream": {
        "carpool_sidecar.upstream",
        "carpool_sidecar.server",
        "carpool_sidecar.app",
    },
    "carpool_sidecar.server": {"carpool_sidecar.server", "carpool_sidecar.app"},
    "carpool_sidecar.server.http2": {"carpool_sidecar.server.http2", "carpool_sidecar.server.grpc"},
    "carpool_sidecar.server.grpc": {"carpool_sidecar.server.grpc", "carpool_sidecar.app"},
    "carpool_sidecar.protocols.tensors_from_v1": {
        "carpool_sidecar.protocols.tensors_from_embeddings",
        "carpool_sidecar.protocols.tensors_from_pairs",
        "carpool_sidecar.protocols.tensors_from_v1",
        "carpool_sidecar.app.wiring",
    },
    "carpool_sidecar.protocols.tensors_from_embeddings": {
        "carpool_sidecar.protocols.tensors_from_embeddings",
        "carpool_sidecar.protocols.tensors_from_pairs",
        "carpool_sidecar.app.wiring",
    },
    "carpool_sidecar.protocols.tensors_from_pairs": {
        "carpool_sidecar.protocols.tensors_from_pairs",
        "carpool_sidecar.app.wiring",
    },
    "carpool_sidecar.drain": {"carpool_sidecar.server", "carpool_sidecar.app.wiring"},
    "carpool_sidecar.app.wiring": {"carpool_sidecar.app.process"},
    "carpool_sidecar.app.process": {"carpool_sidecar.app.cli"},
    "carpool_sidecar.app.drain_command": {"carpool_sidecar.app.cli"},
    "carpool_sidecar.admin_client": {"carpool_sidecar.app", "carpool_sidecar.live"},
    "carpool_sidecar.app.cli": {"carpool_sidecar.__main__"},
    "tests": set(),
    "benchmarks": set(),
}


def covers(name: str, module: str) -> bool:
    return module == name or module.startswith(name + ".")


def covered(names: set[str], module: str) -> bool:
    return any(covers(name, module) for name in names)


def module_name(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(file, folder): file
    for package, folder in FOLDERS.items()
    for file in sorted((folder / package).rglob("*.py"))
}


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
        allowed = covered(layer.project, imported) or imported in {top, f"{top}.__version__", *FOR_THE_COMPILER}
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
        ("carpool.scheduling.backlog", "import asyncio"),
        ("carpool.scheduling.backlog", "def later():\n    import time"),
        ("carpool.scheduling.backlog", "from carpool_sidecar.protocols import v1"),
        ("carpool.scheduling.backlog", "from carpool_sidecar import protocols"),
        ("carpool.scheduling.backlog", "from ..wire import v1"),
        ("carpool_sidecar.planning.engine", "import time"),
        ("carpool_sidecar.planning.engine", "import numpy"),
        ("carpool_sidecar.planning.planner", "import argparse"),
        ("carpool_sidecar.planning.command", "import rich"),
        ("carpool_sidecar.planning.engine", "from carpool_sidecar.protocols import v1"),
        ("carpool_sidecar.protocols.v1", "import socket"),
        ("carpool_sidecar.protocols.v1", "from aiohttp import web"),
        ("carpool.errors", "import aiohttp"),
        ("carpool.program.settings", "from carpool import errors"),
        ("carpool_sidecar.batching.executor", "from carpool_sidecar.upstream import client"),
        ("carpool_sidecar.upstream.client", "from carpool_sidecar.server import app"),
        ("carpool_sidecar.upstream.client", "import prometheus_client"),
        ("carpool_sidecar.server.app", "from carpool_sidecar.app import cli"),
        ("carpool_sidecar.server.app", "from carpool_sidecar.app import wiring"),
        ("carpool_sidecar.upstream.client", "import carpool_sidecar.drain"),
        ("carpool_sidecar.drain", "from carpool_sidecar.server import app"),
        ("carpool_injector.core.injection", "import kubernetes"),
        ("carpool_injector.core.injection", "import time"),
        ("carpool_injector.core.injection", "from carpool.scheduling import packing"),
        ("carpool_injector.core.injection", "from carpool_injector.webhook import server"),
        ("carpool_injector.objects.review", "import aiohttp"),
        ("carpool_injector.certificates.rotation", "import ssl"),
        ("carpool_injector.webhook.server", "from kubernetes.aio import client"),
        ("carpool_injector.webhook.server", "from carpool_injector.commands import serve"),
        ("carpool_predictor.server", "from carpool_injector.core import model"),
        ("carpool_predictor.server", "import torch.nn"),
        ("carpool_predictor.server", "from carpool_sidecar.batching import executor"),
        ("carpool_predictor.models.minilm", "from carpool_sidecar.upstream import client"),
        ("carpool_sidecar.app.cli", "from tests import conftest"),
        ("carpool_sidecar.app.cli", "from carpool_sidecar import config"),
        ("carpool_sidecar.app.cli", "import uvloop"),
        ("carpool_sidecar.app.drain_command", "from carpool.program import settings"),
        ("carpool_sidecar.app.drain_command", "import asyncio"),
        ("carpool_sidecar.admin_client", "import asyncio"),
        ("carpool_sidecar.live.tap_command", "import rich"),
        ("carpool_sidecar.live.snapshots", "from carpool_sidecar.server import admin"),
        ("carpool_sidecar.batching.executor", "from carpool_sidecar.live import recorder"),
    ],
)
def test_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(complaints(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("carpool.scheduling.backlog", "from collections import deque\nfrom carpool.scheduling import messages"),
        ("carpool_sidecar.planning.traffic", "import random\nfrom carpool.scheduling import scheduler"),
        ("carpool_sidecar.protocols.v1", "import re\nimport msgspec\nfrom carpool_sidecar import errors"),
        ("carpool_sidecar.server.admin", "import prometheus_client\nfrom carpool_sidecar import __version__, batching"),
        ("carpool_predictor.models.minilm", "import torch\nfrom carpool.workers import frames"),
        ("carpool_predictor.server", "from carpool.program import logs"),
        (
            "carpool_injector.core.injection",
            "import carpool_injector\nimport pydantic\nfrom carpool_injector.core import pods",
        ),
        ("carpool_injector.webhook.service", "import uvloop\nfrom carpool_injector.certificates import pki"),
        ("carpool_sidecar.app.wiring", "from carpool_sidecar import drain\nfrom carpool_sidecar.server import app"),
    ],
)
def test_permitted_import_is_let_through(module: str, source: str) -> None:
    assert complaints(module, source) == []
