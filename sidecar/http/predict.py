"""The batched lane: from the head and body of a predict request to a call, and from its outcome to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import cast

from aiohttp import hdrs, web
from multidict import MultiMapping, istr

from sidecar import calls, config, driver, errors
from sidecar.core import limits, model
from sidecar.http import answers, intake
from sidecar.http import headers as headers_
from sidecar.http import target as target_
from sidecar.wire import v1

# What people send JSON as: curl -d says it is a form, simple clients say nothing or text.
_JSON_TYPES = frozenset({"", "application/json", "application/x-www-form-urlencoded", "text/plain", "text/json"})
# As istr a name is looked up without being lowered first.
_EVENT_ID, _REQUEST_ID, _TIMEOUT = istr("ce-id"), istr("X-Request-ID"), istr("carpool-timeout-ms")
_TRACEPARENT, _TRACESTATE = istr("traceparent"), istr("tracestate")

# Bytes a second below which a caller does not read but hold our memory.
_SLOWEST_READER = 64 * 1024
_MAX_TIMEOUT_MS = 86_400_000


def is_batchable(method: str, target: str, headers: MultiMapping[str]) -> bool:
    """Whether this is a v1 predict request in JSON; `target` as received.

    KServe's rule, the decoded path ends in `:predict`, for POST only. Other media types (tensors in binary, forms
    with files) and CloudEvents, whose envelope a batch would lose, are not ours.
    """
    if method != "POST":
        return False
    path = target_.origin_form(target).partition("?")[0]
    if not path.endswith((":predict", "%3Apredict", "%3apredict")):
        return False
    media_type = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    is_json = media_type in _JSON_TYPES or (media_type.endswith("+json") and "cloudevents" not in media_type)
    return is_json and _EVENT_ID not in headers


class PredictLane:
    """Makes calls from requests and waits for their outcomes.

    `bounds` are the core's and read anew for each request, so live changes apply at once.
    """

    def __init__(
        self, chosen: config.Settings, bounds: limits.Limits, bodies: intake.Intake, calls_driver: driver.Driver
    ) -> None:
        self.bounds = bounds
        self.bodies = bodies
        self.driver = calls_driver
        self._key_headers = tuple((istr(name), name.title()) for name in chosen.key_headers)
        dialect = answers.KServeDialect if chosen.kserve_errors else answers.Dialect
        self.dialect: answers.Dialect = dialect(int(chosen.overload_status))

    async def read(self, request: web.BaseRequest) -> bytes:
        """The decoded body, within all limits; raises `errors.CarpoolError`."""
        return await self.bodies.read(request)

    def hold(self, body: bytes) -> AbstractContextManager[None]:
        """Keep counting a body that `read` returned and no call took over."""
        return self.bodies.hold(len(body))

    async def outcome(self, request: web.BaseRequest, body: bytes) -> calls.Outcome:
        """Predictions, or why there are none, for one request.

        Raises `errors.CarpoolError` for a body that never made it into the queue, and `v1.Columnar` if it is valid
        but has no rows to batch by. Cancelling this takes the request out of the queue.
        """
        head = self.head(request.raw_path, request.headers)
        payload = self.payload(body)
        call = _Waiting(head.key(payload), len(payload.rows), len(body), payload, head, head.timeout)
        call.replier = self
        call.waiter = asyncio.get_running_loop().create_future()
        self.driver.submit(call)
        try:
            return await call.waiter
        except asyncio.CancelledError:
            self.driver.cancel(call)
            raise

    def answer(self, answers_: Sequence[model.Answer], member: bytes) -> None:
        """Part of `calls.Replier`."""
        for call, pieces in answers_:
            _resolve(cast(calls.Call, call), calls.Answered(member, pieces))

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Part of `calls.Replier`."""
        _resolve(call, error)

    def time_to_read(self, size: int) -> float:
        """Seconds a caller gets to take an answer of so many bytes off our hands."""
        return self.bounds.timeout + size / _SLOWEST_READER

    def head(self, target: str, headers: MultiMapping[str]) -> calls.Head:
        """What counts of a request's target and headers, as received; raises `errors.BadRequest`."""
        timeout = headers.get(_TIMEOUT)
        return calls.Head(
            target_.origin_form(target),
            _select(headers, self._key_headers),
            None if timeout is None else _seconds(timeout),
            _value(headers, _REQUEST_ID),
            _value(headers, _TRACEPARENT),
            _value(headers, _TRACESTATE),
        )

    def payload(self, body: bytes) -> v1.Payload:
        """The instances of a decoded body; raises `errors.BadRequest`, `errors.PayloadTooLarge` or `v1.Columnar`."""
        return v1.parse_request(body, self.bounds.max_queue_instances)

    def tell(self, outcome: calls.Outcome) -> answers.Answer:
        """The answer to an outcome."""
        if isinstance(outcome, calls.Answered):
            return self.dialect.predictions(outcome)
        return self.dialect.failure(outcome)

    def tell_early(self, error: errors.CarpoolError) -> answers.Answer:
        """The answer to a request that never became a call."""
        return self.dialect.error(error)


class _Waiting(calls.Call):
    """A call whose outcome a coroutine waits for."""

    __slots__ = ("waiter",)
    waiter: asyncio.Future[calls.Outcome]


def _resolve(call: calls.Call, outcome: calls.Outcome) -> None:
    waiter = cast(_Waiting, call).waiter
    # Between its cancellation and the caller's clean-up a waiter may still be answered.
    if not waiter.done():
        waiter.set_result(outcome)


def _select(headers: MultiMapping[str], names: Sequence[tuple[str, str]]) -> calls.Headers:
    return tuple((title, value) for name, title in names if (value := _value(headers, name)) is not None)


def _value(headers: MultiMapping[str], name: str) -> str | None:
    """A header that is to be forwarded; several lines of one name are one value (RFC 9110, 5.3)."""
    if name not in headers:
        return None
    value = ", ".join(headers.getall(name))
    headers_.check_utf8(name, value)
    return value


def _seconds(text: str) -> float:
    if text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _MAX_TIMEOUT_MS:
        return int(text[:10]) / 1000
    raise errors.BadRequest(f"carpool-timeout-ms must be a whole number from 1 to {_MAX_TIMEOUT_MS}; got {text[:40]!r}")
