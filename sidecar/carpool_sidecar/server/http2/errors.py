"""What a client can do wrong, by what it costs: the connection or one stream."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Error codes of RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class _Fault(Exception):
    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class ConnectionFault(_Fault):
    """The connection's state is lost or its client hostile: GOAWAY with this code, and the end."""


class StreamFault(_Fault):
    """One stream cannot go on: RST_STREAM with this code; the others are served."""
