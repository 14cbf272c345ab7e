"""Fixtures of the tests with real servers of lists: one of each, started when the first test asks for it."""

from __future__ import annotations

import contextlib
import pathlib
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import skips
from e2e.lists import peers
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

Starts = Callable[..., sidecar_.Sidecar]
Make = Callable[[pathlib.Path, peers.Say], servers.Server]
# A lone request waits so long for others, enough for all that a test sends at once. In some tests nearly all fail.
_COMMON = ("--policy", "window", "--max-latency", "30", "--retry-budget", "100")


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> peers.Say:
    """Prints a line about what takes a while, past pytest's capture."""
    uncaptured = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled

    def says(line: str) -> None:
        with uncaptured():
            print(f"\nlists: {line}", flush=True)

    return says


def _environment(wanted: peers.Environment) -> Any:
    """A fixture of the environment; it skips where that cannot be made."""

    @pytest.fixture(scope="session")
    def prepare(say: peers.Say) -> peers.Environment:
        with skips.where_unavailable():
            wanted.prepare(say)
        return wanted

    return prepare


def _served(kind: Make) -> Any:
    """A fixture of the server, which runs; it skips where that cannot be installed."""

    @pytest.fixture(scope="session")
    def serve(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
        yield from _running(kind, say, tmp_path_factory)

    return serve


# OpenAI's client, LangChain and LlamaIndex; MLflow's.
clients = _environment(peers.CLIENTS)
mlflow_client = _environment(peers.MLFLOW)
embedder = _served(peers.Embedder)  # FastAPI with MiniLM
kserve = _served(peers.KServe)  # KServe's Python server with MiniLM
tables = _served(peers.Tables)  # the same with models of scikit-learn, XGBoost and LightGBM
mlserver = _served(lambda folder, _: servers.MLServer(folder))
documented = _served(peers.Documented)  # what TensorFlow Serving and Hugging Face's toolkit document
mlflow_frame = _served(peers.MLflowFrame)  # a model of columns
mlflow_tensor = _served(peers.MLflowTensor)  # a model of arrays


@pytest.fixture(scope="session", params=[peers.TEI, peers.OlderTEI], ids=["1.9", "1.8"])
def tei(
    request: pytest.FixtureRequest, say: peers.Say, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Server]:
    """The stand-in for text-embeddings-inference, as both generations."""
    yield from _running(request.param, say, tmp_path_factory)


@pytest.fixture
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    """Starts a sidecar in front of a server: `before(server, rules, *more flags)`.

    `rules` are names of built-in ones, or YAML, which is given as a file.
    """
    with contextlib.ExitStack() as stack:

        def start(server: servers.Server, rules: str, *options: str) -> sidecar_.Sidecar:
            folder = tmp_path_factory.mktemp("sidecar")
            words = [*_COMMON, f"--lists={_as_argument(rules, folder)}", *options]
            return stack.enter_context(sidecar_.running(folder, server, *words))

        yield start


def _as_argument(rules: str, folder: pathlib.Path) -> str:
    if ":" not in rules:
        return rules
    file = folder / "rules.yaml"
    file.write_text(textwrap.dedent(rules))
    return str(file)


def _running(kind: Make, say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with skips.where_unavailable():
        server = kind(tmp_path_factory.mktemp("server"), say)
    say(f"starting {server.name}")
    with servers.running(server):
        yield server
