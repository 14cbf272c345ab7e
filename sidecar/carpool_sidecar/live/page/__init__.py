"""The live page: one document with its style and its script inside, and the policy that lets a browser run only those.

They are three files here so that editors know them for what they are. The policy names the two by their hashes, so
nothing else runs, not even what a path or a request id may try to smuggle in; and nothing is fetched but from the
sidecar itself.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from typing import NamedTuple


class Page(NamedTuple):
    """The document, and its Content-Security-Policy."""

    body: bytes
    policy: str


@functools.cache
def load() -> Page:
    """Put the page together; the first time it is asked for, for most sidecars are never looked at."""
    folder = importlib.resources.files(__name__)
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    body = folder.joinpath("index.html").read_text(encoding="utf-8")
    body = body.replace("/* style.css */", style).replace("/* script.js */", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Page(body.encode(), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
