"""The one place where errors of the HTTP client become errors of this project."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from carpool_sidecar import errors


@contextmanager
def translated() -> Iterator[None]:
    """Turn what aiohttp's client raises into an `errors.UpstreamError`.

    Connecting failed or took too long: `UpstreamUnreachable`. The connection ended before an answer began:
    `UpstreamClosed`. The answer broke off or was not HTTP: `UpstreamBroken`. A time limit passed: `UpstreamTimeout`.
    """
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise errors.UpstreamUnreachable("the predictor cannot be reached: connecting timed out") from error
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise errors.UpstreamTimeout from error
    except aiohttp.ClientConnectorError as error:
        if error.os_error.errno in (errno.EMFILE, errno.ENFILE):
            raise errors.OutOfSockets from error
        raise errors.UpstreamUnreachable(f"the predictor cannot be reached: {error.os_error.strerror}") from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
        raise errors.UpstreamClosed from error
    except aiohttp.ClientError as error:
        # Not its text: that quotes the predictor's address and raw bytes.
        raise errors.UpstreamBroken(f"the predictor's answer is not usable ({type(error).__name__})") from error
