"""Which requests are batched, and what has to be known of their models before; request targets, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.batching import calls, model_registry, routes
from carpool_sidecar.protocols import models, v1
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.v2_http import codec

INFER = "/v2/models/m/infer"
V1 = calls.Route(v1.Codec(), None)  # type: ignore[arg-type] # nothing is sent


class Predictor:
    """Tells of its models when it is asked; `asked` are their names."""

    def __init__(self, **told: models.ModelInfo) -> None:
        self.told = told
        self.asked: list[models.ModelName] = []

    async def ask(self, name: models.ModelName) -> models.ModelInfo:
        self.asked.append(name)
        if name.name not in self.told:
            raise errors.UpstreamStatus(404, b"")
        return self.told[name.name]

    def models(self, **options: Any) -> routes.Models:
        make = lambda model: codec.Codec(model.info, model.avoid)  # noqa: E731
        return routes.Models(model_registry.ModelRegistry(self.ask, make, True, lambda: 0.0), None, **options)  # type: ignore[arg-type]


def match(target: str, method: str = "POST", ways: routes.Routes | None = None, **headers: str) -> routes.Match | None:
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return (ways or routes.Routes(V1, Predictor().models())).match(method, target, fields)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (INFER, ("m", "")),
        ("/v2/models/m/versions/3/infer", ("m", "3")),
        ("/v2/models/a%2Fb/infer?x=1", ("a%2Fb", "")),
        ("http://host/v2/models/m/infer", ("m", "")),
    ],
)
def test_a_v2_infer_request_is_of_the_model_and_version_in_its_path(target: str, name: tuple[str, str]) -> None:
    assert match(target) == routes.Match(models.ModelName(*name), "v2")


@pytest.mark.parametrize(
    "target",
    [
        "/v2/models/m", "/v2/models/m/ready", "/v2/models//infer", "/v2/models/m/infer/", "/v2/models/m/generate",
        "/v2/models/m/versions//infer", "/v2/models/a/b/infer", "/x/v2/models/m/infer", "/v2/models/infer",
    ],
)  # fmt: skip
def test_other_paths_of_v2_are_passed_through(target: str) -> None:
    assert match(target) is None


def test_only_posts_are_batched() -> None:
    assert match(INFER, method="GET") is None
    assert match("/v1/models/m:predict", method="PUT", content_type="application/octet-stream") is None


JSON_TYPES = ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", "text/json",
              "text/plain", "application/x-www-form-urlencoded", "", ";")  # fmt: skip
DOUBTFUL_TYPES = ("text/html", "text/html; charset=utf-8", "text/csv", "application/vnd.x", "application/xml", "json",
                  "application/javascript", "*/*", "application/json, text/plain", "caf\xe9")  # fmt: skip
FOREIGN_TYPES = (
    "multipart/form-data; boundary=x", "multipart/related", "application/cloudevents+json", "text/event-stream",
    "application/cloudevents-batch+json", "application/cloudevents", "application/x-ndjson", "application/json-seq",
    "image/png", "audio/wav", "video/mp4", "application/x-protobuf", "application/vnd.google.protobuf",
    "application/zip", "application/msgpack", "application/vnd.apache.arrow.stream", "application/gzip",
    "application/grpc+proto",
    "application/geo+json-seq", "application/x.y+protobuf", "APPLICATION/CBOR",
)  # fmt: skip


@pytest.mark.parametrize("target", [INFER, "/v1/models/m:predict"])
def test_a_type_that_json_is_sent_as_says_that_a_request_may_be_batched(target: str) -> None:
    assert all(_says_so(target, kind) for kind in JSON_TYPES)
    assert match(target) == match(target, content_type="application/json")


@pytest.mark.parametrize("target", [INFER, "/v1/models/m:predict"])
@pytest.mark.parametrize("kind", DOUBTFUL_TYPES)
def test_a_type_that_is_neither_json_nor_binary_leaves_it_to_the_body(target: str, kind: str) -> None:
    assert not _says_so(target, kind)


@pytest.mark.parametrize("target", [INFER, "/v1/models/m:predict"])
@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_a_predict_request_of_a_type_that_is_no_json_document_travels_alone(target: str, kind: str) -> None:
    with pytest.raises(errors.Unbatchable, match="media_type"):
        match(target, content_type=kind)


def test_cloud_events_travel_alone() -> None:
    for target in (INFER, "/v1/models/m:predict"):
        with pytest.raises(errors.Unbatchable, match="cloud_event"):
            match(target, content_type="application/json", ce_id="1")
    assert match("/elsewhere", ce_id="1") is None


def test_bytes_are_tensors_in_v2_and_anything_in_v1() -> None:
    assert _says_so(INFER, "application/octet-stream")
    assert match(INFER, content_type="image/png", inference_header_content_length="7") is not None
    with pytest.raises(errors.Unbatchable, match="media_type"):
        match("/v1/models/m:predict", content_type="application/octet-stream")


def _says_so(target: str, kind: str) -> bool:
    found = match(target, content_type=kind)
    assert found is not None
    return found.says_so


@pytest.mark.parametrize(("is_http", "name"), [(True, "a%20b"), (False, "a b")])
def test_names_for_tensors_of_v1_are_as_the_predictors_protocol_has_them(is_http: bool, name: str) -> None:
    tensors = routes.Tensors(*Predictor().models(is_http=is_http))
    ways = routes.Routes(tensors, Predictor().models())
    assert match("/v1/models/a%20b:predict", ways=ways) == routes.Match(models.ModelName(name), "v1")
    assert match("/v1/models/m/versions/2%3Apredict", ways=ways) == routes.Match(models.ModelName("m", "2"), "v1")
    assert match("/elsewhere:predict", ways=ways) is None


async def test_a_model_is_asked_about_once_before_its_first_request_is_batched() -> None:
    predictor = Predictor(m=models.ModelInfo(max_batch_size=4))
    ways = routes.Routes(V1, predictor.models())
    found = match(INFER, ways=ways)
    assert found is not None
    assert ways.route(found) is None
    assert not predictor.asked
    learned = await ways.learn(found)
    route = ways.route(found)
    assert route is learned
    assert (route.codec.max_batch_size, route.doubtful) == (4, frozenset({500}))
    assert (await ways.learn(found)).codec is route.codec
    assert predictor.asked == [models.ModelName("m")]


async def test_a_model_that_must_not_be_batched_is_told_by_its_reason() -> None:
    ways = routes.Routes(V1, Predictor(m=models.ModelInfo(max_batch_size=0)).models())
    found = match(INFER, ways=ways)
    stranger = match("/v2/models/stranger/infer", ways=ways)
    assert found is not None
    assert stranger is not None
    with pytest.raises(errors.Unbatchable, match="no_batch_dimension"):
        await ways.learn(found)
    with pytest.raises(errors.Unbatchable, match="unknown_model"):
        await ways.learn(stranger)


async def test_a_route_in_use_tells_when_its_model_must_not_be_batched_any_more() -> None:
    predictor = Predictor(m=models.ModelInfo(max_batch_size=4))
    source = predictor.models()
    ways = routes.Routes(V1, source)
    found = match(INFER, ways=ways)
    assert found is not None
    route = await ways.learn(found)
    assert route.objection is not None
    assert route.objection() is None
    (await source.registry.ask(models.ModelName("m"))).avoid()
    assert route.objection() == "outputs"
    await source.registry.close()


async def test_v1_requests_need_no_model_where_the_predictor_speaks_v1() -> None:
    ways = routes.Routes(V1, Predictor().models())
    assert ways.route(routes.Match(None, "v1")) is V1
    assert await ways.learn(routes.Match(None, "v1")) is V1


async def test_v1_requests_that_become_tensors_are_never_passed_through() -> None:
    told = models.ModelInfo(max_batch_size=0)
    ways = routes.Routes(routes.Tensors(*Predictor(m=told).models()), Predictor().models())
    route = await ways.learn(routes.Match(models.ModelName("m"), "v1"))
    assert route.objection is not None
    assert route.objection() is None
    with pytest.raises(errors.UpstreamStatus) as caught:
        await ways.learn(routes.Match(models.ModelName("stranger"), "v1"))
    assert caught.value.status == 404


class TestEmbeddings:
    """OpenAI's embeddings for models of a v2 predictor: the body names the model."""

    def source(self, predictor: Predictor, is_http: bool = True) -> routes.ByBody:
        rule = rules.built_in()["openai-embeddings"]
        words = calls.ErrorWords(lambda error, status: b"%d" % status, rewords=True)
        return routes.ByBody([rule], predictor.models().registry, None, bytes.decode, words, is_http)  # type: ignore[arg-type] # nothing is sent

    def ways(self, predictor: Predictor, **options: Any) -> routes.Routes:
        tensors = routes.Tensors(*predictor.models())
        return routes.Routes(tensors, predictor.models(), by_body=[self.source(predictor, **options)])

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/openai/deployments/d/embeddings?x=1"])
    def test_are_matched_before_the_body_is_read(self, path: str) -> None:
        found = match(path, ways=self.ways(Predictor()), content_type="text/html")
        assert found is not None
        assert (found.model, found.route, found.protocol, found.says_so) == (None, None, "lists", True)
        assert found.error_words is not None
        assert found.error_words.rewords

    @pytest.mark.parametrize("path", ["/v1/embedding", "/v1/embeddings/x", "/v1/rerank"])
    def test_other_paths_are_passed_through(self, path: str) -> None:
        assert match(path, ways=self.ways(Predictor())) is None
        assert match("/v1/embeddings", method="GET", ways=self.ways(Predictor())) is None

    def test_the_paths_of_models_stay_theirs(self) -> None:
        ways = self.ways(Predictor())
        assert match("/v1/models/m:predict", ways=ways) == routes.Match(models.ModelName("m"), "v1")
        assert match(INFER, ways=ways) == routes.Match(models.ModelName("m"), "v2")

    @pytest.mark.parametrize(("is_http", "asked"), [(True, "a%2Fb%20%C3%A9"), (False, "a/b é")])
    async def test_the_model_is_the_one_that_the_body_names(self, is_http: bool, asked: str) -> None:
        predictor = Predictor(**{asked: models.ModelInfo(max_batch_size=4)})
        ways = self.ways(predictor, is_http=is_http)
        found = match("/v1/embeddings", ways=ways)
        assert found is not None
        route = await ways.learn(found, "a/b é".encode())
        assert predictor.asked == [models.ModelName(asked)]
        assert route.error_words is found.error_words
        assert ("api-key", "Api-Key") in route.key_headers
        assert route.objection is not None
        assert route.objection() is None

    async def test_a_model_that_is_not_there_is_told_by_its_name(self) -> None:
        ways = self.ways(Predictor())
        found = match("/v1/embeddings", ways=ways)
        assert found is not None
        with pytest.raises(errors.ModelNotFound, match="the model 'a b' does not exist"):
            await ways.learn(found, b"a b")

    async def test_a_predictor_that_does_not_answer_is_no_reason_to_call_a_model_unknown(self) -> None:
        class Away(Predictor):
            async def ask(self, name: models.ModelName) -> models.ModelInfo:
                raise errors.UpstreamUnreachable

        ways = self.ways(Away())
        found = match("/v1/embeddings", ways=ways)
        assert found is not None
        with pytest.raises(errors.UpstreamUnreachable):
            await ways.learn(found, b"m")


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        ("/a%2Fb?x=%20#y", "/a%2Fb?x=%20#y"),
        ("/http://a/b", "/http://a/b"),
        ("//a/b", "//a/b"),
        ("*", "*"),
        ("host:1", "host:1"),
        ("http://host:1/v1/models/m:predict?x", "/v1/models/m:predict?x"),
        ("HTTPS://user@host/", "/"),
        ("http://host", "/"),
        ("http://host?q=/x", "/?q=/x"),
        ("http://host//x", "//x"),
        ("http://host/?", "/?"),
        ("http://host/a#b", "/a#b"),
    ],
)
def test_the_origin_form_is_the_path_and_query_of_any_target(received: str, expected: str) -> None:
    assert routes.origin_form(received) == expected
