"""What is fuzzed: whatever reads bytes that a client or a server on the network chose, held against a second opinion.

A target is a function that gets bytes and raises where a promise is broken. Most are properties of the tests, which
Hypothesis lets a fuzzer drive; those of modules in C compare them with their Python, byte by byte.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from tests import native

Target = Callable[[bytes], object]


class About(NamedTuple):
    """Where a target comes from, as `module:name`, and what it looks for."""

    where: str
    promise: str


TARGETS = {
    "forms": About("benchmarks.fuzz.targets:forms", "forms of rows, in C and in Python"),
    "numbers": About("benchmarks.fuzz.targets:numbers", "lists of numbers, in C and as the JSON parser reads them"),
    "json": About(
        "tests.protocols.test_against_oracle:test_anything_at_all_is_passed_on_refused_or_understood",
        "bodies with lists by any rule, as the slow reader of the documentation reads them",
    ),
    "json_memory": About(
        "tests.protocols.test_against_oracle:test_what_was_seen_before_changes_nothing",
        "bodies that are like one that was seen before",
    ),
    "v1": About(
        "tests.protocols.test_v1_requests:test_whatever_is_accepted_is_json_that_an_ordinary_parser_reads_the_same",
        "v1 requests, as an ordinary parser reads them",
    ),
    "v2_json": About(
        "tests.protocols.v2_http.test_v2_fuzz:test_garbled_request_is_refused_or_stays_within_its_own_rows",
        "garbled v2 requests beside good ones",
    ),
    "http1_chunks": About(
        "tests.server.test_messages:"
        "test_a_body_in_chunks_is_read_alike_however_it_is_cut_and_as_h11_reads_it_or_refused",
        "bodies in chunks, as h11 reads them",
    ),
    "http1_streams": About(
        "tests.http1.test_meaning:test_a_stream_of_any_bytes_means_what_it_means_to_h11_or_is_refused",
        "requests of a connection, as h11 finds them, and as the relay writes them",
    ),
    "http1_answers": About(
        "tests.upstream.test_answers:test_no_bytes_at_all_bring_anything_but_an_outcome_or_a_clean_error",
        "answers of predictors",
    ),
    "http2": About(
        "tests.server.http2.test_errors:test_no_sequence_of_frames_does_more_than_end_the_connection",
        "frames of HTTP/2",
    ),
    "hpack": About(
        "tests.server.http2.test_headers:test_any_bytes_are_read_or_refused_as_by_the_library",
        "header blocks of HTTP/2, as hpack reads them",
    ),
    "grpc": About(
        "tests.protocols.v2_grpc.test_grpc_messages:test_bytes_are_taken_apart_only_if_protobuf_reads_the_same_in_them",
        "inference requests over gRPC, as protobuf reads them",
    ),
}


def load(name: str) -> Target:
    """The function of a target, with all that it needs imported. Raises `KeyError` for an unknown name."""
    module, _, attribute = TARGETS[name].where.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    about = getattr(found, "hypothesis", None)
    target: Target = found if about is None else about.fuzz_one_input
    target(b"")  # imports the rest, builds what is in C
    return target


def run(name: str, options: list[str]) -> None:
    """Fuzz one target with libFuzzer's options, until these or a broken promise end the process."""
    import atheris

    with atheris.instrument_imports(include=["carpool", "carpool_sidecar"]):
        target = load(name)
    atheris.Setup([f"fuzz-{name}", *options], target)
    atheris.Fuzz()


@functools.cache
def _in_c(name: str) -> ModuleType:
    """A module in C, built at first use; CARPOOL_FUZZ_NATIVE names a folder that keeps what was built."""
    kept = os.environ.get("CARPOOL_FUZZ_NATIVE")
    return native.in_c(name, pathlib.Path(kept or tempfile.mkdtemp(prefix="carpool-fuzz-")))


def _in_python(name: str) -> ModuleType:
    """Its twin, imported as usual: Atheris sees which branches are taken. (The compiled build has C here, too.)"""
    return importlib.import_module(f"carpool_sidecar.{name}")


def forms(data: bytes) -> None:
    """Of lists in JSON both find the same; whatever else comes is bounded."""
    try:
        is_list = isinstance(json.loads(data), list)
    except (ValueError, RecursionError):
        is_list = False
    for in_detail in (False, True):
        found = _in_c("protocols.form_scan").scan(b"", data, 0, len(data), in_detail)
        expected = _in_python("protocols.form_scan").scan(b"", data, 0, len(data), in_detail)
        assert found is None or len(found) <= 64 * 1024 + 1
        assert found == expected or not is_list


def numbers(data: bytes) -> None:
    from tests.protocols import test_number_lists as tests

    opened, text = 1 + (data[0] % 3 if data else 0), data[1:]
    found = _in_c("protocols.number_lists").find(text + b"9", 0, len(text), opened, 1000, tests.MOST, 0)
    if found is None:
        return
    expected = tests.closed(text.decode("latin-1"), opened)
    assert expected is not None
    depth, rows = expected
    assert found[0] == depth
    if opened == depth == 1:
        assert [text[start - 1000 : stop - 1000] for start, stop in zip(found[1], found[2], strict=True)] == rows[1:-1]
