"""Rerank requests as pairs: what each caller gets is what it would get alone, in its own words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, refusal_texts
from carpool_sidecar.protocols.lists import room, rules
from carpool_sidecar.protocols.pairs import codec, destinations, dialects
from tests.protocols.pairs import stand_ins

JSON = {b"content-type": b"application/json"}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
LIST_NAMES = {"rerank": "documents", "tei-rerank": "texts", "nim-ranking": "passages"}


def spoken(kind: str, *names: str, on_part: Callable[[str], None] | None = None) -> codec.Codec:
    return codec.Codec(rules.load(names or LIST_NAMES), destinations.Destination.parse(kind), on_part)


def part(payload: codec.Payload, start: int = 0, stop: int | None = None) -> messages.Part:
    request = messages.Request(payload.key, payload.row_count, payload=payload)
    return messages.Part(request, start, payload.row_count if stop is None else stop)


def rendered(payload: codec.Payload, pieces: Sequence[Any]) -> Any:
    form = payload.response_format
    assert form is not None
    return json.loads(b"".join(form.render([messages.Piece(0, "b", piece) for piece in pieces]).body))


def answered(by: codec.Codec, kind: str, parts: Sequence[messages.Part]) -> list[Any]:
    """The scores of each part of one call."""
    call = by.merge("b", "/rerank", parts)
    rows: Any = call.read(interface.UpstreamResponse(stand_ins.answer(kind, b"".join(call.body)), JSON)).rows
    found, at = [], 0
    for _, start, stop in parts:
        found.append(rows[at : at + stop - start])
        at += stop - start
    return found


def alone(kind: str, body: Any) -> Any:
    by = spoken(kind)
    payload = by.parse(json.dumps(body).encode(), 1000)
    return rendered(payload, answered(by, kind, [part(payload)]))


def results(answer: Any) -> list[tuple[int, float]]:
    """Places and scores of any dialect's answer, in its order."""
    rows = answer if isinstance(answer, list) else answer.get("results", answer.get("rankings"))
    names = ("relevance_score", "score", "logit")
    return [(row["index"], next(row[name] for name in names if name in row)) for row in rows]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    rule = draw(st.sampled_from(sorted(LIST_NAMES)))
    query, documents = draw(TEXTS), draw(st.lists(TEXTS, min_size=1, max_size=6))
    body: dict[str, Any] = {"query": query, LIST_NAMES[rule]: documents, "model": "m"}
    if rule == "nim-ranking":
        body |= {"query": {"text": query}, "passages": [{"text": text} for text in documents]}
    if rule == "rerank":
        body |= draw(
            st.fixed_dictionaries({}, optional={"top_n": st.integers(1, 8), "return_documents": st.booleans()})
        )
    return body


@pytest.mark.parametrize("kind", sorted(stand_ins.KINDS))
@given(data=st.data())
def test_any_callers_in_one_call_get_what_each_gets_alone(kind: str, data: st.DataObject) -> None:
    bodies = data.draw(st.lists(requests(), min_size=1, max_size=5), label="bodies")
    by = spoken(kind)
    payloads = [by.parse(json.dumps(body).encode(), 1000) for body in bodies]
    assert len({payload.key for payload in payloads}) == 1
    # Each in parts, and the parts of all in calls of any size.
    parts: list[messages.Part] = []
    for payload in payloads:
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, payload.row_count - 1)), max_size=2), label="cuts"))
        ends = [cut for cut in cuts if cut < payload.row_count]
        whole = part(payload).request
        parts += [messages.Part(whole, *each) for each in zip([0, *ends], [*ends, payload.row_count], strict=True)]
    most = data.draw(st.integers(1, len(parts)), label="parts a call")
    pieces: dict[int, list[Any]] = {}
    for at in range(0, len(parts), most):
        some = parts[at : at + most]
        for each, rows in zip(some, answered(by, kind, some), strict=True):
            pieces.setdefault(id(each.request.payload), []).append(rows)
    for body, payload in zip(bodies, payloads, strict=True):
        got, expected = rendered(payload, pieces[id(payload)]), alone(kind, body)
        assert results(got) == results(expected)
        assert {**got, "usage": 0} == {**expected, "usage": 0} if isinstance(got, dict) else got == expected


@given(query=TEXTS, documents=st.lists(TEXTS, min_size=1, max_size=9), top=st.none() | st.integers(1, 12))
def test_the_best_comes_first_and_of_equal_ones_the_earlier(query: str, documents: list[str], top: int | None) -> None:
    answer = alone("tei-predict", {"query": query, "documents": documents, "top_n": top})
    assert results(answer) == stand_ins.ranked(query, documents, top)


def test_counts_of_a_call_are_shared_out_and_add_up() -> None:
    by = spoken("vllm-score")
    payloads = [
        by.parse(json.dumps({"query": "q", "documents": documents, "model": "m"}).encode(), 10)
        for documents in (["a", "b"], ["cc"])
    ]
    found = [
        rendered(payload, [rows])
        for payload, rows in zip(payloads, answered(by, "vllm-score", [part(each) for each in payloads]), strict=True)
    ]
    assert [sum(each["usage"][name] for each in found) for name in ("prompt_tokens", "total_tokens")] == [9, 9]


def test_what_a_caller_says_beside_its_texts_goes_along_and_only_equal_requests_meet() -> None:
    by = spoken("tei-predict")
    body = b'{"truncate":true,"query":"q","texts":["a"],"raw_scores":%b,"model":"x","return_text":true}'
    one, two, three = [by.parse(body % raw, 10) for raw in (b"true", b"true", b"false")]
    assert one.key == two.key != three.key
    call = by.merge("b", "/rerank", [part(one)])
    assert call.target == "/predict"
    assert json.loads(b"".join(call.body)) == {"inputs": [["q", "a"]], "truncate": True, "raw_scores": True}


def test_the_model_goes_to_where_the_predictor_looks_for_it() -> None:
    body = b'{"query":"q","documents":["a"],"model":"a/b"}'
    targets = {}
    for kind in ("tei-predict", "vllm-score", "v1", "v1:other"):
        by = spoken(kind)
        call = by.merge("b", "/rerank", [part(by.parse(body, 10))])
        targets[kind] = call.target, json.loads(b"".join(call.body)).get("model")
    assert targets == {
        "tei-predict": ("/predict", None),
        "vllm-score": ("/score", "a/b"),
        "v1": ("/v1/models/a%2Fb:predict", None),
        "v1:other": ("/v1/models/other:predict", None),
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"[]", "must be a JSON object with documents or texts or passages"),
        (b'{"query":"q"', "Input data was truncated"),
        (b'{"query":"q"}', "the member documents or texts or passages is missing"),
        (b'{"query":"q","query":"q","documents":["a"]}', "duplicate member 'query'"),
        (b'{"documents":["a"]}', "rule 'rerank': 'query' is missing"),
        (b'{"query":["q"],"documents":["a"]}', "rule 'rerank': 'query' must be a text"),
        (b'{"query":"q","documents":"a"}', "rule 'rerank': 'documents' is no list"),
        (b'{"query":"q","documents":[]}', "rule 'rerank': 'documents' is empty"),
        (b'{"query":"q","documents":["a",1]}', "rule 'rerank': 'documents' has in item 1 no string or object"),
        (b'{"query":"q","documents":[{"image":"a"}]}', "rule 'rerank': 'documents' has no 'text' in item 0"),
        (b'{"query":"q","documents":["a"],"top_n":0}', "rule 'rerank': 'top_n' must be a whole number from 1 on"),
        (b'{"query":"q","documents":["a"],"top_n":1,"top_k":1}', "rule 'rerank': 'top_n' must be a whole number"),
        (b'{"query":"q","documents":["a"],"model":1}', "'model' must be a text"),
        (b'{"query":"q","texts":[{"text":"a"}]}', "rule 'tei-rerank': 'texts' has in item 0 no string"),
        (b'{"query":"q","passages":[{"text":"a"}]}', "rule 'nim-ranking': 'query.text' is missing"),
    ],
)
def test_what_no_pairs_can_be_made_of_is_refused_with_the_rule_and_the_member(body: bytes, words: str) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        spoken("tei-predict").parse(body, 10)
    assert words in str(caught.value)


def test_more_beside_the_list_than_is_compared_byte_for_byte_is_refused() -> None:
    body = b'{"query":"q","documents":["a"],"x":"' + b"y" * 70_000 + b'"}'
    with pytest.raises(errors.BadRequest, match="more than 65536 bytes beside its list"):
        spoken("tei-predict").parse(body, 10)


def test_a_model_is_needed_where_the_path_names_it() -> None:
    with pytest.raises(errors.BadMember, match="rule 'rerank': 'model' is missing: it names the model") as caught:
        spoken("v1").parse(b'{"query":"q","documents":["a"]}', 10)
    assert caught.value.name == "model"


@pytest.mark.parametrize("name", [".", "..", "a\n", "x" * 257], ids=["here", "above", "a line", "long"])
def test_a_name_that_no_model_has_makes_no_path(name: str) -> None:
    body = json.dumps({"query": "q", "documents": ["a"], "model": name}).encode()
    for read in (lambda: spoken("v1").parse(body, 10), lambda: dialects.read_model(body)):
        with pytest.raises(errors.ModelNotFound):
            read()


def test_pairs_that_would_be_far_more_than_the_body_are_refused() -> None:
    body = json.dumps({"query": "q" * 60_000, "documents": [""] * 1200}).encode()
    with pytest.raises(errors.PayloadTooLarge, match="rule 'rerank': 'query' stands in each of 1200 pairs"):
        spoken("tei-predict").parse(body, 10_000)
    assert len(body) < dialects.MOST_PAIRS // 100


def test_more_documents_than_may_wait_are_refused() -> None:
    with pytest.raises(errors.PayloadTooLarge):
        spoken("tei-predict").parse(b'{"query":"q","documents":["a","b","c"]}', 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'[[{"score":1}]]', "has 1 rows; the batch has 2"),
        (b'[[{"score":1}],[{"score":2}],[{"score":3}]]', "has 3 rows; the batch has 2"),
        (b'{"error":"x"}', "no list at $"),
        (b"nonsense", "not as rule 'rerank' says"),
        (b'[[{"score":1},{"score":2}],[{"score":3},{"score":4}]]', "a row has 2 scores, as those of classifiers have"),
        (b'[{"label":"a"},{"label":"b"}]', "rule 'rerank' needs it: a row has no score"),
        (b'["0.5","0.6"]', "a row has no score"),
        (b"[true,false]", "a row has no score"),
    ],
)
def test_an_answer_without_one_score_for_each_pair_is_refused(answer: bytes, words: str) -> None:
    by = spoken("tei-predict")
    call = by.merge("b", "/rerank", [part(by.parse(b'{"query":"q","documents":["a","b"]}', 10))])
    with pytest.raises(errors.UpstreamBroken) as caught:
        call.read(interface.UpstreamResponse(answer, JSON))
    assert not isinstance(caught.value, errors.Uneven)  # which would send all documents in one call
    assert words in str(caught.value)


@pytest.mark.parametrize("row", ["1e-1", "[1e-1]", '{"score":1e-1}', '[{"label":"x","score":1e-1}]', "[[1e-1]]"])
def test_scores_are_found_in_any_form_and_stay_as_they_were_written(row: str) -> None:
    by = spoken("v1:m")
    payload = by.parse(b'{"query":"q","documents":["a"]}', 10)
    call = by.merge("b", "/rerank", [part(payload)])
    rows: Any = call.read(interface.UpstreamResponse(b'{"predictions":[%b]}' % row.encode(), JSON)).rows
    assert payload.response_format is not None
    body = b"".join(payload.response_format.render([messages.Piece(0, "b", rows[0:1])]).body)
    assert b'"relevance_score":1e-1}' in body


def test_what_is_no_number_comes_last() -> None:
    by = spoken("v1:m", "tei-rerank")
    payload = by.parse(b'{"query":"q","texts":["a","b","c","d"]}', 10)
    call = by.merge("b", "/rerank", [part(payload)])
    rows: Any = call.read(interface.UpstreamResponse(b'{"predictions":[null,NaN,-3,2]}', JSON)).rows
    assert [each["index"] for each in rendered(payload, [rows[0:4]])] == [3, 2, 0, 1]


class TestLimits:
    """Of a rule of one's own, where it has some, else of the predictor's."""

    def test_the_most_rows_are_those_of_ones_own_rule_or_the_predictors(self) -> None:
        own = "{it: {extends: rerank, max_batch_size: 256}}"
        assert spoken("tei-predict", "rerank").max_batch_size == 32
        assert spoken("tei-predict", own).max_batch_size == 256
        assert spoken("v1:m", "nim-ranking").max_batch_size == sys.maxsize  # that is NIM's, which is not here

    def test_the_query_takes_up_room_in_each_pair(self) -> None:
        own = "{it: {extends: rerank, max_bytes: 1000}}"
        payload = spoken("tei-predict", own).parse(
            json.dumps({"query": "q" * 190, "documents": ["d" * 290] * 3}).encode(), 10
        )
        taken = payload.row_room(0, 3)
        assert 0.48 < taken[0] / room.WHOLE <= 0.5
        assert len(b"".join(map(bytes, [payload.cut(0, 0, 2)]))) <= 1000

    def test_parts_are_counted_by_the_name_of_the_rule(self) -> None:
        told: list[str] = []
        by = spoken("tei-predict", on_part=told.append)
        payload = by.parse(b'{"query":"q","texts":["a","b"]}', 10)
        by.merge("b", "/rerank", [part(payload, 0, 1)])
        by.merge("b", "/rerank", [part(payload, 1, 2)])
        by.merge("b", "/rerank", [part(payload)])
        assert told == ["tei-rerank", "tei-rerank"]


@pytest.mark.parametrize("text", ["", "tei", "tei-predict:m", "v3", "v2:", "v2:a b", "v1:a/b", "V2"])
def test_other_destinations_are_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="must be one of tei-predict, vllm-score, v1, v2"):
        destinations.Destination.parse(text)


def test_the_query_that_was_found_is_the_one_that_is_taken_out_of_the_call() -> None:
    by = spoken("tei-predict", "{own: {extends: rerank, query: [query, question]}}")
    payload = by.parse(b'{"question":"q","documents":["a"],"query":null}', 10)
    assert json.loads(b"".join(by.merge("b", "/rerank", [part(payload)]).body)) == {
        "inputs": [["q", "a"]],
        "query": None,
    }
    assert payload.added == 0


def test_what_stands_in_each_pair_is_counted_as_often() -> None:
    payload = spoken("tei-predict").parse(json.dumps({"query": "q" * 98, "documents": [""] * 11}).encode(), 20)
    assert payload.added == 10 * 100


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b'{"query":{"text":"q","image":"x"},"passages":[{"text":"a"}]}',
            "'query' has a member 'image', which no pairs",
        ),
        (b'{"query":{"text":"q"},"passages":[{"text":"a","image":"x"}]}', "has an image in item 0, of which no pairs"),
        (b'{"query":"q","documents":["a",{"text":"a","image_url":{}}]}', "has an image in item 1, of which no pairs"),
    ],
)
def test_what_pairs_have_no_place_for_is_refused_and_never_left_out(body: bytes, words: str) -> None:
    with pytest.raises(errors.BadMember) as caught:
        spoken("tei-predict").parse(body, 10)
    assert words in str(caught.value)


def test_in_one_object_query_and_documents_stand_alone() -> None:
    by = spoken("tei-predict", "{own: {extends: rerank, list: a.b, query: a.q}}")
    assert by.parse(b'{"a":{"b":["x"],"q":"q","none":null}}', 10).row_count == 1
    with pytest.raises(errors.BadMember, match="'a' has a member 'c', which no pairs can be made of"):
        by.parse(b'{"a":{"b":["x"],"q":"q","c":1}}', 10)


@pytest.mark.parametrize("said", [None, False, 0, "", "false", []])
def test_documents_are_returned_where_they_are_asked_for_or_the_rule_says_always(said: Any) -> None:
    def documents(rule: str) -> list[Any]:
        by = spoken("tei-predict", rule)
        body = {"query": "q", "documents": ["a"], "return_documents": said}
        payload = by.parse(json.dumps(body).encode(), 10)
        answer = rendered(payload, answered(by, "tei-predict", [part(payload)]))
        return [row.get("document") for row in answer["results"]]

    assert documents("rerank") == [None]
    assert documents('{vllm: {extends: rerank, return_if: "*"}}') == [{"text": "a"}]


def test_any_number_of_results_may_be_wanted() -> None:
    assert len(results(alone("tei-predict", {"query": "q", "documents": ["a", "b"], "top_n": 2**31}))) == 2
    body = b'{"query":"q","documents":["a"],"top_n":%b}' % (b"9" * 10_000)
    assert spoken("tei-predict").parse(body, 10).row_count == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"model":"m"', "Input data was truncated"),
    ],
)
def test_what_is_no_json_is_told_in_the_same_words_before_any_predictor(body: bytes, words: str) -> None:
    for read in (lambda: spoken("tei-predict").parse(body, 10), lambda: dialects.read_model(body)):
        with pytest.raises(errors.BadRequest) as caught:
            read()
        assert words.lower() in str(caught.value).lower()


def test_pairs_are_made_of_texts_or_objects_and_a_rule_without_them_is_refused() -> None:
    with pytest.raises(ValueError, match="'query' needs rows of the 'kinds' string or object"):
        rules.load(["{own: {extends: rerank, kinds: [number]}}"])


def test_faults_that_fastapi_lists_are_told_as_their_messages() -> None:
    body = b'{"detail":[{"loc":["body","a"],"msg":"Field required"},{"msg":"Input should be a list","input":{"x":1}}]}'
    assert refusal_texts.text_of(errors.UpstreamStatus(422, body)) == "Field required; Input should be a list"
    assert refusal_texts.text_of(errors.UpstreamStatus(422, b'{"detail":[1]}')) == '{"detail":[1]}'
