"""wrk as load generator: threads of C, of which a Python server cannot outrun one.

The request body travels through a file that a generated Lua script reads, and the script's `done` prints the
figures as one JSON line, so nothing depends on wrk's rounded table. https://github.com/wg/wrk, SCRIPTING.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks import client, load, machine

_MARK = "carpool-result "

_SCRIPT = """\
local file = assert(io.open({body!r}, "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
{headers}
file:close()
{requests}

done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{mark}{{"requests":%d,"microseconds":%d,"p50":%d,"p99":%d,' ..
    '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.status, e.timeout))
end
"""


# Bodies that take turns; each thread begins with another one.
_IN_TURN = """
local ready, last, begun = {{}}, 0, 0
setup = function(thread)
  thread:set("first", begun)
  begun = begun + 1
end
init = function(arguments)
  local at = 1
  for _, size in ipairs({{{sizes}}}) do
    ready[#ready + 1] = wrk.format(nil, nil, nil, wrk.body:sub(at, at + size - 1))
    at = at + size
  end
  last = first * 97 % #ready
end
request = function()
  last = last % #ready + 1
  return ready[last]
end
"""

# Callers that are traced, each in a trace of its own; so many of a hundred are sampled.
_TRACED = """
local ready, last = {{}}, 0
init = function(arguments)
  for number = 1, 100 do
    local flags = number <= {sampled} and "01" or "00"
    wrk.headers["traceparent"] = string.format("00-%032x-%016x-%s", number + 0x1000, number, flags)
    ready[number] = wrk.format()
  end
end
request = function()
  last = last % 100 + 1
  return ready[last]
end
"""


# Requests that were made beforehand, each behind a line that tells its length.
_PREPARED = """
local ready, last = {{}}, 0
init = function(arguments)
  local prepared = assert(io.open({requests!r}, "rb"))
  local size = prepared:read("*n", "*l")
  while size do
    ready[#ready + 1] = prepared:read(size)
    size = prepared:read("*n", "*l")
  end
  prepared:close()
end
request = function()
  last = last % #ready + 1
  return ready[last]
end
"""


class WrkFailed(Exception):
    """wrk did not report figures; `str()` is what it printed instead."""


def is_available() -> bool:
    return shutil.which("wrk") is not None


def require() -> None:
    """Raises `WrkFailed` with what to do if there is none."""
    if not is_available():
        raise WrkFailed("wrk is not on PATH (Debian: apt install wrk)")


def measure(
    url: str,
    body: bytes | Sequence[bytes],
    connections: int,
    seconds: float,
    cores: set[int] | None,
    headers: Mapping[str, str] = client.JSON,
    sampled: int | None = None,
    threads: int = 1,
    prepared: Sequence[bytes] = (),
) -> load.Measurement:
    """Post `body` to `url` over so many connections for so many (whole) seconds. Raises `WrkFailed`.

    Several bodies take turns. With `sampled`, each request has a `traceparent`, and so many of a hundred say that they
    are sampled. Whole requests that are `prepared` are sent instead, one after the other, over and over.
    """
    with tempfile.TemporaryDirectory(prefix="carpool-wrk-") as folder:
        body_file, script_file = pathlib.Path(folder, "body.json"), pathlib.Path(folder, "post.lua")
        several = [] if isinstance(body, bytes) else list(body)
        body_file.write_bytes(b"".join(several) if several else bytes(body))
        text = script(str(body_file), headers, sampled, [len(each) for each in several])
        if prepared:
            requests_file = pathlib.Path(folder, "requests")
            requests_file.write_bytes(b"".join(b"%d\n%b" % (len(each), each) for each in prepared))
            text += _PREPARED.format(requests=str(requests_file))
        script_file.write_text(text)
        command = ["wrk", f"--threads={min(threads, connections)}", f"--connections={connections}"]
        command += [f"--duration={max(1, round(seconds))}s"]
        command += ["--timeout=30s", f"--script={script_file}", url]
        with machine.pinned(cores):
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + load.PATIENCE, check=False
            )
    return parse(result.stdout + result.stderr)


def script(
    body_file: str,
    headers: Mapping[str, str] = client.JSON,
    sampled: int | None = None,
    sizes: Sequence[int] = (),
) -> str:
    """The Lua script that posts the content of a file with these headers; their values need no escapes in JSON.

    With `sizes` the file has so many bodies of these sizes one after another.
    """
    lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items()]
    requests = "" if sampled is None else _TRACED.format(sampled=sampled)
    requests += _IN_TURN.format(sizes=", ".join(map(str, sizes))) if sizes else ""
    return _SCRIPT.format(body=body_file, mark=_MARK, headers="\n".join(lines), requests=requests)


def parse(output: str) -> load.Measurement:
    """The figures in what wrk printed. Raises `WrkFailed` when there are none."""
    line = next((line for line in output.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise WrkFailed(output.strip() or "wrk printed nothing")
    figures = json.loads(line.removeprefix(_MARK))
    kinds = ("connect", "read", "write", "status", "timeout")
    # wrk counts a non-2xx answer among the requests; here `requests` are the successful ones.
    return load.Measurement(
        requests=figures["requests"] - figures["status"],
        seconds=figures["microseconds"] / 1e6,
        p50=figures["p50"] / 1e6,
        p99=figures["p99"] / 1e6,
        errors={kind: figures[kind] for kind in kinds if figures[kind]},
    )
