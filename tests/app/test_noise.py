"""What callers send never gets into the log by itself, however malformed it is."""

from __future__ import annotations

import asyncio
import logging

import pytest

from carpool_sidecar.server import admin

pytestmark = pytest.mark.looptime

MALFORMED = [
    b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer\x00 secret\r\n\r\n",
    b"GET /\xff?secret HTTP/1.1\r\nHost: h\r\n\r\n",
    b"secret / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: secret\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n",
]


@pytest.mark.parametrize("request_", MALFORMED)
@pytest.mark.parametrize("port", ["port", "admin_port"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_malformed_http_is_one_line_at_debug_without_what_was_sent(bench, caplog, port, request_):
    caplog.set_level(logging.DEBUG)
    reader, writer = await asyncio.open_connection("127.0.0.1", getattr(bench.sidecar.settings, port))
    writer.write(request_)
    assert (await reader.read()).split()[1] == b"400"
    writer.close()
    await writer.wait_closed()
    told = [record for record in caplog.records if "Error handling request" in record.getMessage()]
    assert len(told) <= 1
    assert all((record.levelno, record.exc_info) == (logging.DEBUG, None) for record in told)
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    assert "secret" not in caplog.text


def test_a_bug_keeps_its_traceback(caplog):
    log = admin.ServerLog(logging.getLogger("carpool"))
    error = ZeroDivisionError("why")
    log.exception("Unhandled exception", exc_info=error)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info[1]) == (logging.ERROR, error)
