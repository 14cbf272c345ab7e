"""Requests and responses as views see them."""

from __future__ import annotations

import json
from collections.abc import Mapping


class HttpRequest:
    """A request with these parameters."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.GET = parameters


class JsonResponse:
    """A response with this in its body."""

    def __init__(self, data: object) -> None:
        self.content = json.dumps(data).encode()
