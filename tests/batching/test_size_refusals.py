"""Which refusals mean that a batch was too large, and which number they say."""

from __future__ import annotations

import json

import pytest

from carpool_sidecar import errors
from carpool_sidecar.batching import retried_statuses, size_refusals
from carpool_sidecar.errors import Remedy
from carpool_sidecar.protocols.v2_grpc import statuses


def said(words: str) -> bytes:
    return json.dumps({"error": words}).encode()


ROWS = 33
ANY_NUMBER = size_refusals.Sign()
MEMORY = size_refusals.Sign(memory=True)


@pytest.mark.parametrize(
    ("status", "words", "sign"),
    [
        (413, "", ANY_NUMBER),
        (413, "<html><h1>413 Request Entity Too Large</h1></html>", ANY_NUMBER),
        (413, "batch size 33 > maximum allowed batch size 32", size_refusals.Sign(32)),
        # text-embeddings-inference
        (422, "batch size 33 > maximum allowed batch size 32", size_refusals.Sign(32)),
        (422, "Input validation error: `batch size` exceeds the limit", ANY_NUMBER),
        (424, "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", MEMORY),
        # Triton
        (400, "[request id: <id>] inference request batch-size must be <= 8 for 'simple'", size_refusals.Sign(8)),
        (500, "inference request batch-size must be <= 8 for 'simple'", size_refusals.Sign(8)),
        # OpenVINO Model Server
        (400, "Invalid batch size - Expected: 1; Actual: 33", size_refusals.Sign(1)),
        # OpenAI, Azure, Cohere, Vertex AI, Voyage
        (
            400,
            "Invalid 'input': array too long. Expected an array with maximum length 16, but got an array with length "
            "33 instead.",
            size_refusals.Sign(16),
        ),
        (400, "Too many inputs. The max number of inputs is 1.  We hope to increase it soon.", size_refusals.Sign(1)),
        (400, "invalid request: total number of texts must be at most 30", size_refusals.Sign(30)),
        (400, "30 instance(s) is allowed per prediction. Actual: 33", size_refusals.Sign(30)),
        (400, "The max allowed batch size is 30.", size_refusals.Sign(30)),
        # FastAPI with pydantic
        (422, "List should have at most 32 items after validation, not 33", size_refusals.Sign(32)),
        (422, "ensure this value has at most 32 items", size_refusals.Sign(32)),
        (400, "too many instances", ANY_NUMBER),
        (400, "batch too large", ANY_NUMBER),
        # memory
        (500, "OutOfMemoryError : CUDA out of memory. Tried to allocate 2.00 GiB", MEMORY),
        (500, "torch.cuda.OutOfMemoryError: CUDA out of memory.", MEMORY),
        (500, "RuntimeError: CUDA error: out of memory", MEMORY),
        (500, "HIP out of memory. Tried to allocate", MEMORY),
        (500, "MPS backend out of memory", MEMORY),
        (500, "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried", MEMORY),
        (500, "DefaultCPUAllocator: not enough memory: you tried to allocate 12 bytes", MEMORY),
        (500, "RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes", MEMORY),
        (500, "ResourceExhaustedError: Graph execution error", MEMORY),
        (500, "OOM when allocating tensor with shape[33,512,768]", MEMORY),
        (500, "onnxruntime: Failed to allocate memory for requested buffer of size 123", MEMORY),
        (500, "std::bad_alloc", MEMORY),
        (500, "MemoryError : ", MEMORY),
        (500, "Unable to allocate 3.20 GiB for an array with shape (33, 1000)", MEMORY),
        (507, "CUDA out of memory", MEMORY),
        (500, "x" * 100_000 + "\nMemoryError: ", MEMORY),
    ],
)  # fmt: skip
def test_what_servers_say_of_a_batch_that_is_too_large_is_understood(status, words, sign):
    assert size_refusals.read(errors.UpstreamStatus(status, said(words)), ROWS) == sign


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "bug"),
        (400, "CUDA out of memory"),  # a caller's error may quote the caller
        (422, "value is not a valid float: 'MemoryError'"),
        (404, "batch size 33 > maximum allowed batch size 32"),
        (503, "CUDA out of memory"),  # a predictor that says it is unavailable is left alone
        (429, "too many requests"),
        (400, "the batch size must be positive"),
        # numbers that are not about this batch: a row of it, or another request
        (422, "List should have at most 512 items after validation, not 600"),
        (422, "ensure this value has at most 512 items"),
        (400, "Invalid batch size - Expected: 64; Actual: 33"),
        (422, "batch size 40 > maximum allowed batch size 32"),
        (400, "batch-size must be <= 0"),
        # words deep in what is quoted
        (422, "no: " + "x" * 5000 + " too many inputs"),
        (500, "x" * 50_000 + " MemoryError " + "x" * 50_000),
    ],
)
def test_what_may_be_about_something_else_is_not_taken_for_a_batch_that_is_too_large(status, words):
    assert size_refusals.read(errors.UpstreamStatus(status, said(words)), ROWS) is None


@pytest.mark.parametrize(
    ("code", "words", "sign"),
    [
        (statuses.RESOURCE_EXHAUSTED, "OOM when allocating tensor with shape[33,512]", MEMORY),
        (statuses.RESOURCE_EXHAUSTED, "failed to allocate device memory", MEMORY),
        (statuses.RESOURCE_EXHAUSTED, "Received message larger than max (5000000 vs. 4194304)", ANY_NUMBER),
        (statuses.RESOURCE_EXHAUSTED, "quota exceeded", None),
        (statuses.INVALID_ARGUMENT, "inference request batch-size must be <= 8 for 'simple'", size_refusals.Sign(8)),
        (statuses.INTERNAL, "CUDA out of memory. Tried to allocate", MEMORY),
        (statuses.UNAVAILABLE, "CUDA out of memory", None),
    ],
)
def test_it_is_understood_over_grpc(code, words, sign):
    assert size_refusals.read(statuses.failure(code, words, ()), ROWS) == sign


def judged_call(code: int, words: str, named: str | None = None) -> errors.UpstreamRpcStatus:
    refusal = statuses.failure(code, words, ())
    retried_statuses.Rules(named).judge(refusal, {500}, ROWS)
    return refusal


@pytest.mark.parametrize("code", [statuses.RESOURCE_EXHAUSTED, statuses.OUT_OF_RANGE])
@pytest.mark.parametrize(
    "words",
    [
        "SERVER: Received message larger than max (5000000 vs. 4194304)",
        "grpc: received message after decompression larger than max (5000000 vs. 4194304)",
        "grpc: trying to send message larger than max (5000000 vs. 4194304)",
        "Sent message larger than max (5000000 vs. 4194304)",
        "gRPC message exceeds maximum size 4194304: 5000000",
        "Decompressed gRPC message exceeds maximum size 4194304",
        "Received message exceeds the maximum configured message size.",
        "Error, decoded message length too large: found 5000000 bytes, the limit is: 4194304 bytes",
        "message size 5000000 is larger than configured max 4194304",
        "Frame size 5000000 exceeds maximum: 4194304.",
        "the request is too big: 5 MB, and 4 MiB are allowed",
        "payload of 5000000 bytes is over the limit",
        "REQUEST BODY TOO LARGE",
    ],
)
def test_a_message_that_is_too_large_is_told_over_grpc_in_any_words(code, words):
    refusal = judged_call(code, words)
    assert (refusal.remedy, refusal.most_rows, refusal.is_overload) == (Remedy.SMALLER, None, False)
    assert (refusal.code, refusal.status) == (code, 413)


@pytest.mark.parametrize("code", [statuses.RESOURCE_EXHAUSTED, statuses.OUT_OF_RANGE])
def test_a_batch_size_is_told_over_grpc_with_its_number(code):
    refusal = judged_call(code, "batch size 33 > maximum allowed batch size 32")
    assert (refusal.remedy, refusal.most_rows) == (Remedy.SMALLER, 32)
    assert judged_call(code, "too many instances in one call").remedy is Remedy.SMALLER


@pytest.mark.parametrize(
    "words",
    [
        "",
        "quota exceeded",
        "Exceeds maximum queue size",
        "the request queue is full: its size is 100, the limit is 100",
        "message rate too large: the limit is 4194304 bytes per second",
        "Concurrent RPC limit exceeded!",
        "Too many requests: at most 100 messages of any size",
        "too many pending calls",
        "rate_limited: request size 10 exceeds the limit",
        "the number of requests in flight exceeds the maximum; payload 20 bytes",
        "request throttled, the limit of 1000 bytes is for all callers",
        "server is overloaded, message size 12 bytes over the limit",
        "request of 20 bytes exceeds what is free now, try again later",
        "local_rate_limited",
    ],
)
def test_overload_over_grpc_is_not_taken_for_a_size_nor_sent_again_by_halves(words):
    refusal = judged_call(statuses.RESOURCE_EXHAUSTED, words)
    assert (refusal.remedy, refusal.is_overload, refusal.status) == (Remedy.GIVE_UP, True, 429)


@pytest.mark.parametrize("words", ["no: row 7 is one too many for me", "a sequence has 600 tokens, 512 are allowed"])
def test_what_else_is_exhausted_or_out_of_range_is_searched_by_halves(words):
    exhausted = judged_call(statuses.RESOURCE_EXHAUSTED, words)
    assert (exhausted.remedy, exhausted.is_doubtful) == (Remedy.HALVES_WHILE_WELL, True)  # it may be overload
    assert judged_call(statuses.RESOURCE_EXHAUSTED, words, named="").remedy is Remedy.GIVE_UP
    assert judged_call(statuses.OUT_OF_RANGE, words).remedy is Remedy.HALVES


@pytest.mark.parametrize("code", [statuses.UNAVAILABLE, statuses.UNKNOWN, statuses.NOT_FOUND])
def test_other_codes_with_such_words_tell_of_no_size(code):
    assert size_refusals.read(statuses.failure(code, "message size 9 exceeds the maximum", ()), ROWS) is None


def judged(status: int, words: str, named: str | None = None) -> errors.UpstreamStatus:
    refusal = errors.UpstreamStatus(status, said(words))
    retried_statuses.Rules(named).judge(refusal, {500}, ROWS)
    return refusal


@pytest.mark.parametrize("named", [None, "", "404"])
def test_such_a_batch_is_sent_in_smaller_ones_whichever_statuses_are_isolated_after(named):
    refusal = judged(413, "", named)
    assert (refusal.remedy, refusal.most_rows, refusal.is_doubtful) == (Remedy.SMALLER, None, False)


def test_the_number_goes_with_the_remedy():
    assert judged(422, "batch size 33 > maximum allowed batch size 32").most_rows == 32


def test_memory_that_is_full_does_not_mean_overload_and_leaves_doubts_whose_fault_it_is():
    refusal = judged(429, "OOM when allocating tensor")
    assert (refusal.remedy, refusal.is_overload, refusal.is_doubtful) == (Remedy.SMALLER, False, True)
