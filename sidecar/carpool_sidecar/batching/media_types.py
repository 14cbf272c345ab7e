"""What a request's Content-Type says about its body.

KServe looks at no type, and few clients set theirs with care: curl -d says that JSON is a form, hey says text/html. So
a type that may be a mistake rules nothing out, and the body decides. A type that nobody gives to JSON by accident is
believed, and such a body is never collected: it may be large, or a stream.
"""

from __future__ import annotations

import enum

from aiohttp import hdrs
from multidict import MultiMapping

# What people send JSON as: curl -d says it is a form, simple clients say nothing or text.
_JSON = frozenset({"", "application/json", "application/x-www-form-urlencoded", "text/plain", "text/json"})
_CLOUD_EVENTS = "application/cloudevents"
_FOREIGN_KINDS = ("audio/", "font/", "image/", "message/", "model/", "multipart/", "video/")
_FOREIGN = frozenset(
    {
        # binary
        "application/avro", "application/cbor", "application/dicom", "application/gzip", "application/msgpack",
        "application/ogg", "application/parquet", "application/pdf", "application/protobuf", "application/wasm",
        "application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet",
        "application/vnd.google.protobuf", "application/vnd.msgpack", "application/x-7z-compressed",
        "application/x-arrow", "application/x-avro", "application/x-bzip", "application/x-bzip2", "application/x-gzip",
        "application/x-hdf5", "application/x-msgpack", "application/x-npy", "application/x-npz",
        "application/x-parquet", "application/x-protobuf", "application/x-recordio-protobuf", "application/x-tar",
        "application/zip", "application/zstd",
        # streams of documents
        "application/json-seq", "application/jsonl", "application/jsonlines", "application/ndjson",
        "application/stream+json", "application/x-jsonlines", "application/x-ndjson", "text/event-stream",
    }
)  # fmt: skip
_FOREIGN_FORMATS = ("+avro", "+cbor", "+cbor-seq", "+gzip", "+json-seq", "+msgpack", "+protobuf", "+zip", "+zstd")


class Content(enum.Enum):
    """What a body is, by its type."""

    JSON = "json"
    BYTES = "bytes"  # application/octet-stream: tensors in v2, anything at all elsewhere
    UNTOLD = "untold"  # perhaps JSON all the same; the body tells
    FOREIGN = "foreign"  # no JSON document: binary, multipart, CloudEvents, gRPC, a stream of documents


def content(headers: MultiMapping[str]) -> Content:
    """What the headers of a request say of its body."""
    media_type = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if media_type in _JSON:
        return Content.JSON
    if media_type == "application/octet-stream":
        return Content.BYTES
    if _is_foreign(media_type):
        return Content.FOREIGN
    return Content.JSON if media_type.endswith("+json") else Content.UNTOLD


def _is_foreign(media_type: str) -> bool:
    return (
        media_type in _FOREIGN
        or media_type.startswith((*_FOREIGN_KINDS, "application/grpc", _CLOUD_EVENTS))
        or media_type.endswith(_FOREIGN_FORMATS)
    )
