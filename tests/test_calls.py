"""The headers of a batch, made from those of its members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.program import shared_names
from carpool.scheduling import messages
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1

ROUTE = calls.Route(v1.Codec(), None)  # type: ignore[arg-type] # nothing is sent
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def head(**options: str | None) -> calls.Head:
    return calls.Head(ROUTE, "/", (("Authorization", "a"),), **options)  # type: ignore[arg-type]


def merged(*members: calls.Head) -> dict[str, str]:
    headers = calls.merged_headers(members)
    assert headers[0] == ("Authorization", "a")
    assert len(dict(headers)) == len(headers)
    return dict(headers[1:])


def test_what_no_member_sent_is_not_there() -> None:
    assert merged(head(), head()) == {}


def test_a_batchs_own_headers_stand_for_those_of_the_same_name() -> None:
    own = (("Content-Type", "application/octet-stream"), ("authorization", "b"))
    assert calls.merged_headers([head(request_id="7")], own) == (*own, ("X-Request-ID", "7"))


def forwarding(**values: str) -> calls.Head:
    """A member with headers of --forward-headers, of which those that begin with `all` are joined."""
    return head()._replace(
        forwarded=[(shared_names.Forwarded(name, name.startswith("all")), value) for name, value in values.items()]
    )


def test_of_forwarded_headers_the_first_value_goes_along_or_each_value_once() -> None:
    members = [head(), forwarding(all_a="1", b="2"), forwarding(all_a="3", b="4", c=""), forwarding(all_a="1")]
    assert merged(*members) == {"all_a": "1, 3", "b": "2", "c": ""}


def test_joined_values_are_bounded_and_one_alone_is_never_cut() -> None:
    assert merged(*[forwarding(all_a=f"{number:0>1000}") for number in range(9)]) == {
        "all_a": ", ".join(f"{number:0>1000}" for number in range(4))
    }
    assert merged(forwarding(all_a="x" * 5000)) == {"all_a": "x" * 5000}


def test_a_value_that_does_not_fit_and_an_empty_one_keep_no_others_out() -> None:
    long, empty, ann, bob = (forwarding(all_a=value) for value in ("x" * 5000, "", "ann", "bob"))
    for members in ([long, ann, bob], [ann, long, bob], [empty, ann, bob], [ann, empty, bob, long]):
        assert merged(*members) == {"all_a": "ann, bob"}
    assert merged(long, forwarding(all_a="y" * 5000)) == {}
    assert merged(empty, empty) == {}


def test_request_ids_are_listed_once_each_in_order() -> None:
    ids = ["b", "a", None, "b", "", "c"]
    assert merged(*(head(request_id=one) for one in ids)) == {"X-Request-ID": "b, a, c"}


def test_a_request_id_is_cut_at_200_characters() -> None:
    assert merged(head(request_id="x" * 201), head(request_id="y" * 200)) == {
        "X-Request-ID": "x" * 200 + ", " + "y" * 200
    }


@given(st.lists(st.text("abc", min_size=1, max_size=250), min_size=1, max_size=200, unique=True))
def test_the_list_of_request_ids_is_bounded_and_holds_only_whole_ones(ids: list[str]) -> None:
    listed = merged(*(head(request_id=one) for one in ids))["X-Request-ID"]
    assert len(listed) <= 4096
    whole = list(dict.fromkeys(one[:200] for one in ids))
    kept = set(listed.split(", "))
    assert listed.split(", ") == [one for one in whole if one in kept]
    assert all(len(f"{listed}, {one}") > 4096 for one in whole if one not in kept)


def test_a_list_that_ends_exactly_at_the_bound_is_kept_whole() -> None:
    ids = [f"{number:0>62}" for number in range(64)]  # 64 * 62 + 63 * 2 = 4094
    assert merged(*(head(request_id=one) for one in [*ids[:-1], "x" * 64])) == {
        "X-Request-ID": ", ".join([*ids[:-1], "x" * 64])
    }
    assert merged(*(head(request_id=one) for one in [*ids[:-1], "x" * 65]))["X-Request-ID"] == ", ".join(ids[:-1])


def test_the_first_trace_there_is_goes_with_the_batch() -> None:
    other = TRACE.replace("-01", "-00")
    told = merged(head(tracestate="lone=1"), head(traceparent=TRACE, tracestate="a=1"), head(traceparent=other))
    assert told == {"traceparent": TRACE, "tracestate": "a=1"}
    assert merged(head(traceparent="broken"), head(traceparent=other)) == {"traceparent": other}


@pytest.mark.parametrize("valid", [TRACE, "01" + TRACE[2:], "cc" + TRACE[2:] + "-what-comes", TRACE[:-2] + "ff"])
def test_a_well_formed_traceparent_is_forwarded(valid: str) -> None:
    assert merged(head(traceparent=valid)) == {"traceparent": valid}


@pytest.mark.parametrize(
    "invalid",
    [
        "", "x", TRACE + "-x", TRACE + " ", TRACE + "\n", TRACE[:-1], TRACE.upper(), "ff" + TRACE[2:], "0" + TRACE,
        "00-" + "0" * 32 + TRACE[35:], TRACE[:36] + "0" * 16 + "-01", f"{TRACE}, {TRACE}", "01" + TRACE[2:] + ".x",
        "01" + TRACE[2:] + "-" + "x" * 201, TRACE.replace("-", "_"),
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_ignored_with_its_state(invalid: str) -> None:
    assert merged(head(traceparent=invalid, tracestate="a=1")) == {}


@pytest.mark.parametrize(("length", "kept"), [(512, True), (513, False), (0, False)])
def test_a_tracestate_is_dropped_rather_than_cut(length: int, kept: bool) -> None:
    told = merged(head(traceparent=TRACE, tracestate="x" * length))
    assert told == {"traceparent": TRACE, **({"tracestate": "x" * length} if kept else {})}


def shape(body: bytes) -> object:
    return v1.parse_request(body).row_pattern


def test_the_shape_of_a_request_is_that_of_its_first_instance_whatever_its_values() -> None:
    assert shape(b'{"instances":[[1,2.5e-3],[1]]}') == shape(b'{"instances": [ [ -7 , 0] ]}')
    assert shape(b'{"instances":[{"a":"x\\"]","b":1}]}') == shape(b'{"instances":[{"a":"","b":22}]}')
    different = [b"[1,2]", b"[1,2,3]", b'["1","2"]', b"[[1,2]]", b'{"a":1}', b"null", b"true", b"7", b'"7"']
    assert len({shape(b'{"instances":[%b]}' % row) for row in different}) == len(different)


@pytest.mark.parametrize("prefix", [b"", b"a"])
@pytest.mark.parametrize("text", [b'\\"' * 9000, b"\\\\" * 9000, b"a" * 20_000])
def test_a_string_that_is_longer_than_what_is_looked_at_is_one_as_well(prefix: bytes, text: bytes) -> None:
    # Else each quote in it would begin another one, and the time would grow with the square of their number.
    assert shape(b'{"instances":["%b%b"]}' % (prefix, text)) == b'"'


@given(st.binary(max_size=200))
def test_any_request_that_can_be_parsed_has_a_shape(text: bytes) -> None:
    try:
        payload = v1.parse_request(b'{"instances":[' + text + b"]}")
    except Exception:
        return
    assert len(payload.row_pattern) <= len(text)


def test_bodies_too_large_to_compare_have_no_content() -> None:
    small, large = (v1.parse_request(b'{"instances":["%b"]}' % (b"x" * size)) for size in (10, 100_000))
    assert small.content == b'{"instances":["xxxxxxxxxx"]}'
    assert large.content is None


def test_the_same_content_for_another_model_has_nothing_in_common_with_a_rejected_request() -> None:
    def content(target: str, body: bytes) -> object:
        asked = head()._replace(target=target)
        request = messages.Request("key", 1, len(body), v1.parse_request(body), asked)
        return calls.TRAITS["content"](request)

    small, large = b'{"instances":[1]}', b'{"instances":["%b"]}' % (b"x" * 100_000)
    assert content("/v1/models/a:predict", small) == content("/v1/models/a:predict", small)
    assert content("/v1/models/a:predict", small) != content("/v1/models/b:predict", small)
    assert content("/v1/models/a:predict", large) is None
