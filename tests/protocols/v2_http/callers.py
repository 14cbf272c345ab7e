"""Bodies as callers write them, batches made of them, and the predictor's answers to those."""

from __future__ import annotations

import json
from typing import Any

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols.v2_http import codec

TARGET = "/v2/models/m/infer"
OCTETS = b"application/octet-stream"


def in_json(data: str, shape: str = "[1,2]", datatype: str = "FP32", rest: str = "", ident: str = "") -> bytes:
    start = f'"id":{ident},' if ident else ""
    text = f'{{{start}"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]{rest}}}'
    return text.encode()


def in_binary(data: bytes, shape: str = "[1,2]", datatype: str = "FP32", rest: str = "") -> tuple[bytes, int]:
    said = f'"parameters":{{"binary_data_size":{len(data)}}}'
    head = f'{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}",{said}}}]{rest}}}'.encode()
    return head + data, len(head)


def parts_of(spoken: codec.Codec, *bodies: bytes | tuple[bytes, int]) -> list[messages.Part]:
    found = []
    for body in bodies:
        payload = spoken.parse(body, 100) if isinstance(body, bytes) else spoken.parse(body[0], 100, body[1])
        request = messages.Request(payload.key, payload.row_count, payload=payload)
        found.append(messages.Part(request, 0, payload.row_count))
    return found


def merged(spoken: codec.Codec, *bodies: bytes | tuple[bytes, int]) -> tuple[dict[str, Any], bytes]:
    """The call's JSON, and the bytes after it."""
    call = spoken.merge("the-batch", TARGET, parts_of(spoken, *bodies))
    body, headers = b"".join(call.body), dict(call.headers)
    size = int(headers.get("Inference-Header-Content-Length", len(body)))
    assert headers["Content-Type"] == ("application/json" if len(headers) == 1 else "application/octet-stream")
    return json.loads(body[:size]), body[size:]


def reply_of(*outputs: str, data: bytes = b"") -> wire.UpstreamResponse:
    listed = ",".join(outputs)
    text = f'{{"model_name":"m","model_version":"1","id":"theirs","outputs":[{listed}]}}'.encode()
    headers = {b"inference-header-content-length": b"%d" % len(text)} if data else {}
    return wire.UpstreamResponse(text + data, {b"content-type": OCTETS if headers else b"application/json"} | headers)


def output(data: str, shape: str = "[2,1]", datatype: str = "FP32", name: str = "y") -> str:
    return f'{{"name":"{name}","shape":{shape},"datatype":"{datatype}",{data}}}'


def sized(size: int) -> str:
    return f'"parameters":{{"binary_data_size":{size}}}'


def share_out(parts: list[messages.Part], rows: Any) -> list[tuple[dict[str, Any], bytes]]:
    """Each caller's JSON, and the bytes after it."""
    found, at = [], 0
    for part in parts:
        end = at + part.stop - part.start
        content = part.request.payload.response_format.render([messages.Piece(0, "b", rows[at:end])])
        at, body = end, b"".join(content.body)
        size = int(dict(content.headers).get("Inference-Header-Content-Length", len(body)))
        found.append((json.loads(body[:size]), body[size:]))
    return found


BINARY_ASKED = ',"parameters":{"binary_data_output":true}'
