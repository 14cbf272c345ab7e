"""The v1 protocol's questions about models, answered for a predictor that speaks only v2."""

from __future__ import annotations

import re
import urllib.parse
from typing import Protocol

from carpool_sidecar import errors
from carpool_sidecar.batching import request_target as target_
from carpool_sidecar.protocols import models
from carpool_sidecar.server import dialects
from carpool_sidecar.upstream import model_answers

_MODEL = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?")
_JSON = (("Content-Type", "application/json"),)


class Questions(Protocol):
    """Asks the predictor; both raise `errors.UpstreamError`."""

    async def model_ready(self, name: models.ModelName) -> bool: ...

    async def models(self) -> list[str]: ...


class V1Models:
    """Answers GET and HEAD of `/v1/models` and `/v1/models/NAME`.

    Names are asked for with their `%` escapes if that `is_http`, else plain.
    """

    def __init__(self, questions: Questions, is_http: bool = True) -> None:
        self._questions = questions
        self._is_http = is_http

    async def answer(self, method: str, target: str) -> dialects.Answer | None:
        """The answer, or None if this is no such question; `target` as received."""
        path = target_.origin_form(target).partition("?")[0]
        if method not in ("GET", "HEAD") or not path.startswith("/v1/models"):
            return None
        try:
            if path in ("/v1/models", "/v1/models/"):
                return dialects.Answer(200, _JSON, model_answers.v1_models(await self._questions.models()))
            found = _MODEL.fullmatch(path)
            return None if found is None else await self._model(found[1], found[2] or "")
        except errors.CarpoolError as error:
            return dialects.Dialect().error(errors.bare(error))

    async def _model(self, name: str, version: str) -> dialects.Answer:
        plain = urllib.parse.unquote(name)
        asked = models.ModelName(name, version)
        if not self._is_http:
            asked = models.ModelName(plain, urllib.parse.unquote(version))
        ready = await self._questions.model_ready(asked)
        status, body = model_answers.v1_model(plain, ready)
        return dialects.Answer(status, _JSON, body)
