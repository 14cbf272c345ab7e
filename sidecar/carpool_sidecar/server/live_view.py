"""The live page and its stream of events, over HTTP.

Reading is open to all who reach the admin port, as it is for metrics, but not to pages of other sites.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from carpool_sidecar.live import event_stream
from carpool_sidecar.live import page as live_page
from carpool_sidecar.server import unread

_HTML = "text/html"
# A viewer that does not take a message in so long is gone, or might as well be; its place is somebody else's then.
_PATIENCE = 30.0
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def page(request: web.Request) -> web.Response | None:
    """The page, for a browser; None for a program, which does not say that it reads HTML."""
    if _HTML not in request.headers.get("Accept", ""):
        return None
    shown = live_page.load()
    headers = {**_HEADERS, "Content-Security-Policy": shown.policy, "Vary": "Accept"}
    return web.Response(body=shown.body, content_type=_HTML, charset="utf-8", headers=headers)


async def events(request: web.Request, stream: event_stream.EventStream, may_write: bool) -> web.StreamResponse:
    """The stream, until the viewer, who may change settings or not, or the sidecar leaves."""
    try:
        with stream.viewer() as viewer:
            return await _send(request, viewer, stream.first_message(may_write))
    except event_stream.Full as error:
        raise web.HTTPServiceUnavailable(text=f"{error}\n", headers={"Retry-After": "10"}) from None


async def _send(request: web.Request, viewer: event_stream.Viewer, message: bytes | None) -> web.StreamResponse:
    response = web.StreamResponse(headers={**_HEADERS, "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    await response.prepare(request)
    try:
        while message is not None:
            async with asyncio.timeout(_PATIENCE):
                await response.write(message)
            message = await viewer.next()
    except (TimeoutError, ConnectionError):  # it reads no more
        if request.transport is not None:
            unread.reset(request.transport)
    return response
