"""Servers that batch by themselves what arrives together, to which the sidecar adds a hop and nothing else.

A namespace that asks for all its predictors does not mean them. A pod that asks for itself gets the sidecar, and is
told what it will not do. Embeddings are the exception: a list of texts in one call saves such a server HTTP and JSON
for each of them (docs/lists.md), so with a rule for lists they are predictors like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from carpool_injector.core import list_servers, pods, servers, sites
from carpool_injector.core.settings import Settings

_GENERATION = {"--task": ("generate", "transcription"), "--runner": ("generate",)}


@dataclass(frozen=True, slots=True)
class OwnBatches:
    """A server that batches by itself, by its `title`. `rules` are those for lists that fit its embeddings."""

    title: str
    rules: tuple[str, ...] = ()


_KINDS = (
    OwnBatches("vLLM", ("openai-embeddings",)),
    OwnBatches("SGLang", ("openai-embeddings",)),
    OwnBatches("text-embeddings-inference", ("tei-embed", "openai-embeddings")),
    OwnBatches("Infinity", ("openai-embeddings",)),
    OwnBatches("Ollama", ("ollama-embed", "openai-embeddings")),
    OwnBatches("llama.cpp's server", ("openai-embeddings",)),
    OwnBatches("text-generation-inference"),
    OwnBatches("JetStream"),
)
_BY_TITLE = {kind.title: kind for kind in _KINDS}
_GENERATIVE_TASKS = ("text_generation", "text2text_generation")  # of KServe's Hugging Face server


def recognise(container: pods.Container) -> OwnBatches | None:
    """The server in a container that batches by itself, None for all others.

    Of KServe's Hugging Face server that is certain where it is told to generate text, or to leave its model to vLLM;
    with `--backend=auto` the model decides.
    """
    server = servers.recognise(container)
    if server is None:
        return None
    if list_servers.HUGGING_FACE.recognises(container):
        if list_servers.last(container, "--task") in _GENERATIVE_TASKS:
            return OwnBatches("KServe's Hugging Face server, which generates text,")
        return _BY_TITLE["vLLM"] if list_servers.last(container, "--backend") == "vllm" else None
    kind = _BY_TITLE.get(server.title)
    if kind is not None and any(list_servers.last(container, flag) in words for flag, words in _GENERATION.items()):
        return OwnBatches(kind.title)
    return kind


def gains_nothing(pod: pods.Pod, settings: Settings) -> bool:
    """Whether whatever may be the app batches by itself, and no rule makes lists of its embeddings."""
    found = [recognise(app) for app in sites.candidates(pod, settings)]
    return bool(found) and not any(each is None or (each.rules and settings.lists) for each in found)


def advice(container: pods.Container, settings: Settings) -> Iterator[str]:
    """A warning for who asked for the sidecar in front of such a server all the same."""
    found = recognise(container)
    if found is None or (found.rules and settings.lists is not None):
        return
    text = (
        f"{found.title} batches by itself what arrives together: the sidecar passes its requests on as they are and "
        "makes them no faster"
    )
    if found.rules:
        text += f"; for a model of embeddings see carpool.dev/lists: {found.rules[0]} (an empty value ends this notice)"
    yield text
