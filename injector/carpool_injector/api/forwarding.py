"""The certificate that a port of a pod shows, by way of the API server, as `kubectl port-forward` gets there.

A WebSocket carries two channels for the port, data and errors. Each message begins with its channel, and the first one
of each channel holds the port's number (v4.channel.k8s.io: kubelet, pkg/cri/streaming/portforward/websocket.go).
"""

from __future__ import annotations

import ssl

import aiohttp

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_NUMBER_BYTES = 2


async def shown_certificate(socket: aiohttp.ClientWebSocketResponse, host: str) -> bytes | None:
    """As PEM, whoever signed it: it is looked at, not trusted. None where the port does not answer, or not by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(arriving, leaving, server_hostname=host)
    numbered = set()
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            if leaving.pending:
                await socket.send_bytes(bytes([_DATA]) + leaving.read())
        except ssl.SSLError:
            return None
        else:
            shown = tls.getpeercert(binary_form=True)
            return ssl.DER_cert_to_PEM_cert(shown).encode() if shown else None
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            return None
        channel, content = message.data[0], message.data[1:]
        if channel not in numbered:
            numbered.add(channel)
            content = content[_NUMBER_BYTES:]
        if channel == _ERROR and content:
            return None
        arriving.write(content)
