"""`carpool-sidecar tap`: one line for each batch that came back, as it does."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carpool_sidecar import admin_client
from carpool_sidecar.live import events_client

PROG = "carpool-sidecar tap"

_DESCRIPTION = "Print a line for each batch that came back: when it left and why, its size, its wait, its time."
_SHOWN_IDS = 3


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Print batches until the reader goes away, or --count of them were printed; then the exit status is 0.

    It connects again when the sidecar restarts. Returns 1, with one line on standard error, if the sidecar cannot be
    reached at the beginning. Exits with 2 for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    where = admin_client.address(chosen)
    is_wanted = _filter(chosen.path, chosen.reason, chosen.request_id, chosen.failed)
    render = _json if chosen.json else _line
    left = chosen.count or -1
    seen: int | None = None
    try:
        for name, value in events_client.read_on(where, lost=_note):
            if name == "hello":
                seen = None
            if name != "batches":
                continue
            if seen is not None and (missed := value["seen"] - seen - len(value["batches"])) > 0:
                _note(f"{missed} batches were too many to tell")
            batches = value["batches"] if seen is not None else []  # those of before are history
            seen = value["seen"]
            for batch in filter(is_wanted, batches):
                sys.stdout.write(render(batch) + "\n")
                left -= 1
                if not left:
                    return 0
            sys.stdout.flush()
    except admin_client.Unreachable as error:
        return admin_client.fail(PROG, where, str(error))
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser(environment: Mapping[str, str]) -> admin_client.Parser:
    parser = admin_client.Parser("tap", _DESCRIPTION, events_client.epilog("tap"), environment)
    add = parser.add_argument
    add("--path", metavar="PATTERN", help="only batches of paths like this; * stands for anything")
    add("--reason", metavar="LIST", type=_names, help="only batches that left for these reasons (full,idle,…)")
    add("--request-id", metavar="PATTERN", help="only batches with a request of such an id; * stands for anything")
    add("--failed", action="store_true", help="only batches that failed")
    add("--count", metavar="N", type=_count, help="stop after so many lines")
    add("--json", action="store_true", help="print each batch as a line of JSON")
    return parser


def _filter(
    path: str | None, reasons: frozenset[str] | None, request_id: str | None, failed: bool
) -> Callable[[dict[str, Any]], bool]:
    def is_wanted(batch: dict[str, Any]) -> bool:
        if failed and "error" not in batch:
            return False
        if reasons is not None and batch["reason"] not in reasons:
            return False
        if path is not None and not fnmatch.fnmatchcase(batch["path"], path):
            return False
        return request_id is None or any(fnmatch.fnmatchcase(name, request_id) for name in _ids(batch))

    return is_wanted


def _line(batch: dict[str, Any]) -> str:
    left = datetime.datetime.fromtimestamp(batch["left"]).astimezone()
    waited = (batch["left"] - batch["first"]) * 1000
    size = f"{batch['rows']}/{batch['cap']}"
    text = (
        f"{left:%H:%M:%S}.{left.microsecond // 1000:03d}  {batch['reason']:<12}  {size:>9}  "
        f"{batch['requests']:>4} req  wait {waited:>7.1f} ms  predictor {batch['took']:>8.1f} ms  "
        f"{admin_client.plain(batch['path'])}"
    )
    if "error" in batch:
        text += f"  FAILED {batch['error']}"
    ids = [admin_client.plain(name) for name in _ids(batch)]
    if ids:
        more = len(ids) - _SHOWN_IDS
        text += "  " + ",".join(ids[:_SHOWN_IDS]) + (f" +{more}" if more > 0 else "")
    return text


def _json(batch: dict[str, Any]) -> str:
    return json.dumps(batch, ensure_ascii=True, separators=(",", ":"))


def _ids(batch: Mapping[str, Any]) -> list[str]:
    return [name for name in batch.get("members", {}).get("ids", ()) if name]


def _note(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{PROG}: {text}\n")


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(names - _REASONS)
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"got {text!r}: must be a comma-separated list of {', '.join(sorted(_REASONS))}"
        )
    return names


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}: must be a whole number above 0")
    return int(text)


# Written out, since the module that has them would load the scheduler; a test holds them against it.
_REASONS = frozenset({
    "full", "due", "rest", "idle", "just_in_time", "hold", "probe", "drain", "suspect", "isolate", "closed", "smaller",
})  # fmt: skip
