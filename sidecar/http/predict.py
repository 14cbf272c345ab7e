"""The batched lane: from the head and body of a predict request to a call, and from its outcome to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from aiohttp import hdrs, web
from multidict import MultiMapping, istr

from sidecar import calls, config, driver, errors
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

    `settings` is read anew for each request, so live changes apply at once.
    """

    def __init__(
        self, settings: Callable[[], config.Settings], bodies: intake.Intake, calls_driver: driver.Driver
    ) -> None:
        self._settings = settings
        self._bodies = bodies
        self._driver = calls_driver
        current = settings()
        self._key_headers = tuple((istr(name), name.title()) for name in current.key_headers)
        dialect = answers.KServeDialect if current.kserve_errors else answers.Dialect
        self._dialect: answers.Dialect = dialect(int(current.overload_status))

    async def read(self, request: web.BaseRequest) -> bytes:
        """The decoded body, within all limits; raises `errors.CarpoolError`."""
        return await self._bodies.read(request)

    def hold(self, body: bytes) -> AbstractContextManager[None]:
        """Keep counting a body that `read` returned and no call took over."""
        return self._bodies.hold(len(body))

    async def outcome(self, request: web.BaseRequest, body: bytes) -> calls.Outcome:
        """Predictions, or why there are none, for one request.

        Raises `errors.CarpoolError` for a body that never made it into the queue, and `v1.Columnar` if it is valid
        but has no rows to batch by. Cancelling this takes the request out of the queue.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[calls.Outcome] = loop.create_future()
        call = self.parse(request.raw_path, request.headers, body, _resolver(waiter))
        accepted = self._driver.submit(call)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._driver.cancel(accepted)
            raise

    def time_to_read(self, body: bytes) -> float:
        """Seconds a caller gets to take an answer of this size off our hands."""
        return self._settings().timeout + len(body) / _SLOWEST_READER

    def parse(
        self, target: str, headers: MultiMapping[str], body: bytes, reply: Callable[[calls.Outcome], None]
    ) -> calls.Call:
        """Make a call from a request's target and headers as received and its decoded body.

        Raises `errors.BadRequest`, `errors.PayloadTooLarge` or `v1.Columnar`.
        """
        timeout = headers.get(_TIMEOUT)
        return calls.Call(
            target=target_.origin_form(target),
            headers=_select(headers, self._key_headers),
            payload=v1.parse_request(body, self._settings().max_queue_instances),
            size=len(body),
            reply=reply,
            timeout=None if timeout is None else _seconds(timeout),
            request_id=_value(headers, _REQUEST_ID),
            traceparent=_value(headers, _TRACEPARENT),
            tracestate=_value(headers, _TRACESTATE),
        )

    def tell(self, outcome: calls.Outcome) -> answers.Answer:
        """The answer to an outcome."""
        if isinstance(outcome, calls.Answered):
            return self._dialect.predictions(outcome)
        return self._dialect.failure(outcome)

    def tell_early(self, error: errors.CarpoolError) -> answers.Answer:
        """The answer to a request that never became a call."""
        return self._dialect.error(error)


def _resolver(waiter: asyncio.Future[calls.Outcome]) -> Callable[[calls.Outcome], None]:
    def resolve(outcome: calls.Outcome) -> None:
        # Between its cancellation and the caller's clean-up a waiter may still be answered.
        if not waiter.done():
            waiter.set_result(outcome)

    return resolve


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
