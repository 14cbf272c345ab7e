"""The rules of predict requests over HTTP: what is accepted, and how an outcome is told and counted.

Whoever serves one (`http1.requests`) brings its head and body, hands the call to the driver, and writes the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import yarl
from aiohttp import hdrs
from multidict import MultiMapping, istr

from carpool.program import shared_names
from carpool.scheduling import limits
from carpool_sidecar import config, drain, errors, metrics
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses, unread
from carpool_sidecar.server.http1 import bodies as bodies_

log = logging.getLogger("carpool.sidecar.server")

# As istr a name is looked up without being lowered first.
_REQUEST_ID, _TIMEOUT = istr("X-Request-ID"), istr("carpool-timeout-ms")
_FORWARDED_FOR = istr("X-Forwarded-For")
_TRACEPARENT, _TRACESTATE = istr("traceparent"), istr("tracestate")

_JSON = "application/json"

# Created, and redirects (RFC 9110, section 10.2.2).
_LOCATED = frozenset({201, 202, 300, 301, 302, 303, 307, 308})

_MAX_TIMEOUT_MS = 86_400_000
_MAX_DIGITS = 12


class PredictRules:
    """What is asked of each request. `bounds` are the scheduler's, read anew each time: live changes apply at once."""

    def __init__(
        self,
        chosen: config.Settings,
        bounds: limits.Limits,
        bodies: bodies_.Limits,
        ways: routes.Routes,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        timings: calls.ServerTimings | None = None,
    ) -> None:
        self.timings = timings
        self.bounds = bounds
        self.bodies = bodies
        self.patience = unread.Patience(bounds, bodies.memory)
        """How long callers may take over their answers."""
        self.routes = ways
        self.life = life
        self.metrics = counters
        self._v1_headers = tuple((istr(name), name.title()) for name in chosen.key_headers)
        # A v2 body's type is told by what is in it: JSON, or JSON and binary tensors. One that is rewritten has ours.
        self._untyped_headers = tuple((name, title) for name, title in self._v1_headers if title != hdrs.CONTENT_TYPE)
        self._forwarded = [(istr(header.name), header) for header in chosen.forwarded]
        self._priority = istr(chosen.priority_header)
        base = yarl.URL.build(scheme="http", host=chosen.component_host, port=chosen.component_port)
        self._predictor_host = base.host_port_subcomponent  # as a batch's Host header has it
        self._goes_by_rpc = chosen.upstream == "triton-grpc"
        self.dialect = responses.KServeDialect() if chosen.kserve_errors else responses.Dialect()

    @property
    def looked_at(self) -> frozenset[str]:
        """The headers, in lower case, that may decide about a request's route, key, deadline or priority."""
        own = {str(name).lower() for name, _ in [*self._v1_headers, *self._forwarded]}
        own |= {str(self._priority)} if self._priority else set()
        return frozenset({_TIMEOUT.lower(), *own, *self.routes.looked_at})

    # --- what is accepted --------------------------------------------------------------------------------------

    async def route(self, headers: MultiMapping[str], match: routes.Match, body: bytes | None = None) -> calls.Route:
        """The way of a request, for which the predictor may have to be asked within the caller's own deadline.

        `body` is needed where `match.by_body` finds it. Raises as `routes.Routes.route` does, and
        `errors.DeadlineExceeded`. An invalid timeout is ignored here; `head` refuses it.
        """
        timeout = None
        with contextlib.suppress(errors.BadRequest):
            timeout = _timeout(headers)
        try:
            async with asyncio.timeout(timeout):
                return await self.routes.learn(match, body)
        except TimeoutError:
            raise errors.DeadlineExceeded from None

    def head(
        self, target: str, headers: MultiMapping[str], match: routes.Match, route: calls.Route, spent: float = 0.0
    ) -> calls.Head:
        """What counts of a request's target and headers, as received.

        `spent` are the seconds of the caller's own time that are over. Raises `errors.BadRequest`, and
        `errors.DeadlineExceeded` if that was all of it.
        """
        timeout = _timeout(headers)
        if timeout is not None and spent:
            timeout -= spent
            if timeout <= 0:
                raise errors.DeadlineExceeded
        return calls.Head(
            route,
            routes.origin_form(target),
            self._key_headers(headers, match, route),
            timeout,
            _value(headers, _REQUEST_ID),
            _value(headers, _TRACEPARENT),
            _value(headers, _TRACESTATE),
            _json_size(headers.get(routes.JSON_SIZE)) if match.protocol == "v2" else None,
            headers.get(_FORWARDED_FOR),
            says_so=match.says_so,
            forwarded=self._along(headers, match) if self._forwarded else (),
            host=headers.get(hdrs.HOST),
            priority=calls.level(self._priority, _value(headers, self._priority)) if self._priority else 0,
        )

    def _along(self, headers: MultiMapping[str], match: routes.Match) -> Sequence[tuple[shared_names.Forwarded, str]]:
        """What goes along with other callers' rows; what cannot is this caller's fault, and must not be all of theirs.

        Raises `errors.BadRequest`.
        """
        found = [(header, text) for name, header in self._forwarded if (text := _value(headers, name)) is not None]
        if self._goes_by_rpc and match.protocol != "v2":
            for header, text in found:
                if not shared_names.is_metadata(text):
                    raise errors.BadHeader(f"the header {header.name} must be printable ASCII: it goes on over gRPC")
        return found

    def _key_headers(self, headers: MultiMapping[str], match: routes.Match, route: calls.Route) -> calls.Headers:
        if match.protocol == "v2":
            return _select(headers, self._untyped_headers)
        found = _select(headers, self._untyped_headers if route.is_rewritten else self._v1_headers)
        if route.key_headers:
            found += _select(headers, [each for each in route.key_headers if each not in self._v1_headers])
        if match.says_so:
            return found
        # The body turned out to be JSON, or this request will not be in a batch.
        return tuple((name, _JSON if name == hdrs.CONTENT_TYPE else value) for name, value in found)

    # --- what callers are told ---------------------------------------------------------------------------------

    def render_outcome(
        self,
        outcome: calls.Outcome,
        seconds: float,
        *,
        is_v1: bool = True,
        is_accepted: bool = True,
        words: calls.ErrorWords | None = None,
        host: str | None = None,
    ) -> responses.Response:
        """The response to an outcome, `seconds` after the request came, which counts it.

        An error of a request that was not accepted has its own words in some dialects; `words` are those of a protocol
        that is not v1. `host` is the one that the caller asked for.
        """
        dialect = self.dialect if is_v1 else responses.Dialect(words)
        if isinstance(outcome, calls.Answered):
            try:
                response = dialect.predictions(outcome)
            except errors.CarpoolError as error:  # parts of a split request that do not go together
                outcome, is_accepted = errors.bare(error), False
            except Exception:
                outcome, is_accepted = self.bug(), False
        if isinstance(outcome, errors.CarpoolError):
            self.metrics.refused.labels(outcome.reason).inc()
            response = dialect.failure(outcome) if is_accepted else dialect.error(outcome)
        if response.status in _LOCATED:
            response = response._replace(headers=tuple([self._at_host(host, *header) for header in response.headers]))
        self.metrics.predicted(response.status, seconds)
        return response

    def _at_host(self, host: str | None, name: str, value: str) -> tuple[str, str]:
        """A header for a caller that asked for this host; a batch asks for the predictor's own, which it cannot reach.

        So a Location that the predictor made of that names the caller's, as it would without a sidecar.
        """
        own = f"http://{self._predictor_host}"
        rest = value[len(own) :]
        if name != hdrs.LOCATION or not value.startswith(own) or rest[:1] not in ("", "/", "?", "#"):
            return name, value
        return name, f"http://{host}{rest}" if host else rest or "/"

    def bug(self, words: str = "a request failed for a reason that is a bug") -> errors.CarpoolError:
        """Count and log the exception that is being handled; returns what the caller is told."""
        self.metrics.internal_errors.labels("http1").inc()
        log.exception(words)
        return errors.CarpoolError()


def _select(headers: MultiMapping[str], names: Sequence[tuple[str, str]]) -> calls.Headers:
    return tuple((title, value) for name, title in names if (value := _value(headers, name)) is not None)


def _value(headers: MultiMapping[str], name: str) -> str | None:
    """A header that is to be forwarded; several lines of one name are one value (RFC 9110, 5.3)."""
    if name not in headers:
        return None
    value = ", ".join(headers.getall(name))
    headers_.check_utf8(name, value)
    return value


def _json_size(text: str | None) -> int | None:
    if text is None or _is_number(text):
        return None if text is None else int(text)
    raise errors.BadHeader(f"{routes.JSON_SIZE} must be a whole number of bytes; got {text[:40]!r}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _timeout(headers: MultiMapping[str]) -> float | None:
    text = headers.get(_TIMEOUT)
    if text is None:
        return None
    if _is_number(text) and 1 <= int(text) <= _MAX_TIMEOUT_MS:
        return int(text) / 1000
    raise errors.BadHeader(f"carpool-timeout-ms must be a whole number from 1 to {_MAX_TIMEOUT_MS}; got {text[:40]!r}")
