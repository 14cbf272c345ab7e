"""KServe's resource definitions, from its own Go module: an API server that knows InferenceServices."""

from __future__ import annotations

import functools
from pathlib import Path

from ruamel import yaml

from e2e.cluster import binaries, client, processes, programs

DEFINITIONS = Path("config/crd/full")
WANTED = ("serving.kserve.io_inferenceservices.yaml",)
ESTABLISHED_SECONDS = 30.0


class Missing(Exception):
    """KServe's module could not be had, or lacks the files we want from it."""


def module_folder() -> Path:
    """Where KServe's source lies, fetched now if it is not there. Raises Missing."""
    try:
        return programs.fetch(programs.KSERVE, programs.KSERVE_VERSION)
    except binaries.Unavailable as missing:
        raise Missing(f"KServe's source cannot be had: {missing}") from None


def resource_definitions() -> list[client.Object]:
    """The CustomResourceDefinitions as KServe publishes them. Raises as `module_folder` does."""
    folder = module_folder() / DEFINITIONS
    definitions = []
    for name in WANTED:
        file = folder / name
        if not file.is_file():
            raise Missing(f"{file} is not there; this KServe keeps its definitions elsewhere")
        definitions += [document for document in yaml.YAML(typ="safe").load_all(file) if document]
    return definitions


def install_resource_definitions(admin: client.Client) -> None:
    """Returns when the API server serves InferenceServices."""
    for definition in resource_definitions():
        # What kubectl's server-side apply would leave out too: nothing but the API server writes a status.
        definition.pop("status", None)
        admin.create(definition)
    served = functools.partial(is_served, admin, "InferenceService")
    processes.eventually(served, ESTABLISHED_SECONDS, "InferenceService is served")


def is_served(admin: client.Client, kind: str) -> bool:
    try:
        admin.list(kind)
    except client.Refused:
        return False
    return True
