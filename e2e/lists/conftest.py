"""Fixtures of the tests with real servers of lists: one of each, started when the first test asks for it."""

from __future__ import annotations

import contextlib
import pathlib
import textwrap
from collections.abc import Callable, Iterator

import pytest

from e2e.lists import peers
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

Starts = Callable[..., sidecar_.Sidecar]
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


@pytest.fixture(scope="session")
def clients(say: peers.Say) -> peers.Environment:
    """The environment of OpenAI's client, LangChain and LlamaIndex."""
    return _prepared(peers.CLIENTS, say)


@pytest.fixture(scope="session")
def mlflow_client(say: peers.Say) -> peers.Environment:
    """The environment of MLflow's client."""
    return _prepared(peers.MLFLOW, say)


@pytest.fixture(scope="session")
def embedder(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """FastAPI with MiniLM."""
    yield from _server(peers.Embedder, say, tmp_path_factory)


@pytest.fixture(scope="session")
def kserve(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """KServe's Python server with MiniLM."""
    yield from _server(peers.KServe, say, tmp_path_factory)


@pytest.fixture(scope="session")
def tables(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """KServe's Python server with models of scikit-learn, XGBoost and LightGBM."""
    yield from _server(peers.Tables, say, tmp_path_factory)


@pytest.fixture(scope="session")
def mlserver(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """MLServer, as in `e2e/triton`."""
    yield from _server(lambda folder, _: servers.MLServer(folder), say, tmp_path_factory)


@pytest.fixture(scope="session")
def documented(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """What the documents of TensorFlow Serving and of Hugging Face's toolkit say."""
    yield from _server(peers.Documented, say, tmp_path_factory)


@pytest.fixture(scope="session")
def mlflow_frame(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """MLflow's server with a model of columns."""
    yield from _server(peers.MLflowFrame, say, tmp_path_factory)


@pytest.fixture(scope="session")
def mlflow_tensor(say: peers.Say, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """MLflow's server with a model of arrays."""
    yield from _server(peers.MLflowTensor, say, tmp_path_factory)


@pytest.fixture(scope="session", params=[peers.TEI, peers.OlderTEI], ids=["1.9", "1.8"])
def tei(
    request: pytest.FixtureRequest, say: peers.Say, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Server]:
    """The stand-in for text-embeddings-inference, as both generations."""
    yield from _server(request.param, say, tmp_path_factory)


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


def _prepared(environment: peers.Environment, say: peers.Say) -> peers.Environment:
    try:
        environment.prepare(say)
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    return environment


def _server(
    kind: Callable[[pathlib.Path, peers.Say], servers.Server],
    say: peers.Say,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    try:
        server = kind(tmp_path_factory.mktemp("server"), say)
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    say(f"starting {server.name}")
    with servers.running(server):
        yield server
