"""Where a service is called, what it answers, and what its recorder saw."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from e2e.cluster import processes
from e2e.live import traffic

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True)
class Call:
    """A request as the predictor got it; header names in lower case, times in seconds of the predictor's clock."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: str
    began: float
    ended: float | None

    @property
    def instances(self) -> list[Any]:
        found: list[Any] = json.loads(self.body)["instances"]
        return found


class Target(traffic.Target):
    """A service of one side, whose predictor records."""

    async def predict(
        self, model: str, instances: Sequence[Any], headers: Mapping[str, str] | None = None, patience: float = 30.0
    ) -> traffic.Answer:
        """One predict request in JSON."""
        return await self.predict_raw(model, json.dumps({"instances": list(instances)}).encode(), headers, patience)

    async def predict_raw(
        self, model: str, body: bytes, headers: Mapping[str, str] | None = None, patience: float = 30.0
    ) -> traffic.Answer:
        """One predict request with this body; `model` is the part of the path before `:predict`."""
        sent = {**traffic.JSON, **(headers or {})}
        return await self.send("POST", predict_path(model), body, sent, patience)

    async def predict_all(self, model: str, requests: Sequence[Sequence[Any]]) -> list[traffic.Answer]:
        """One predict request for each list of instances, all at once; the answers in their order."""
        return list(await asyncio.gather(*(self.predict(model, instances) for instances in requests)))

    async def events(self, target: str) -> list[tuple[float, bytes]]:
        """What a GET answers, piece by piece, each with the seconds since the first one."""
        url, headers = self._at(target), {"Host": self.host}
        async with self._session(traffic.ANSWER_SECONDS) as session, session.get(url, headers=headers) as answer:
            pieces = [(time.monotonic(), piece) async for piece in answer.content.iter_any()]
        return [(at - pieces[0][0], piece) for at, piece in pieces]

    async def recorded(self, word: str) -> list[Call]:
        """What the predictor got with that word in its target or body, in the order of arrival."""
        answer = await self.send("GET", f"/recorded?word={word}")
        assert answer.status == 200, answer
        return [
            Call(**{**each, "headers": {name.lower(): value for name, value in each["headers"]}})
            for each in answer.json
        ]

    async def until_recorded(self, word: str) -> None:
        """Returns when the predictor has got a request with that word. Raises TimeoutError."""
        deadline = time.monotonic() + traffic.ANSWER_SECONDS
        while not await self.recorded(word):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the predictor got nothing with {word} in it within {traffic.ANSWER_SECONDS:g} s")
            await asyncio.sleep(processes.POLL_SECONDS)


def predict_path(model: str) -> str:
    return f"/v1/models/{model}:predict"


def told(answer: traffic.Answer) -> str:
    """An answer in one line: status, media type and body, a UUID of version 4 as UUID."""
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    body = answer.text.strip()
    return f"{answer.status} {media_type}: {_UUID.sub('UUID', body)}"


def outcome(answer: traffic.Answer) -> str:
    """What a caller got: `predictions`, or the answer in one line."""
    is_good = answer.status == 200 and answer.json["predictions"] is not None
    return "predictions" if is_good else told(answer)
