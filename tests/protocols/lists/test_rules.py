"""What `--lists` takes: rules that are right, and words for those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_sidecar.protocols.lists import rules

LEAST = {"path": "**/embed", "list": "texts", "answers": "data"}
HERE = "the YAML of --lists"


def loaded(**fields: Any) -> rules.Rule:
    (rule,) = rules.load([json.dumps({"mine": LEAST | fields})])
    return rule


def refusal(*chosen: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 # its words are what is tested
        rules.load(chosen)
    return str(caught.value)


def refusal_of(**fields: Any) -> str:
    return refusal(json.dumps({"mine": {name: value for name, value in (LEAST | fields).items() if value != "-"}}))


# --- where rules come from --------------------------------------------------------------------------------------


def test_built_in_rule_is_had_by_its_name():
    for name, rule in rules.built_in().items():
        assert rules.load([name]) == (rule,)
        assert rule.name == name
        assert rule.about


def test_rules_come_in_the_order_in_which_they_were_chosen(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("b:\n  {path: /b, list: x, answers: y}\na:\n  {path: /a, list: x, answers: y}\n")
    text = json.dumps({"c": LEAST})
    assert [rule.name for rule in rules.load([text, "mlflow", str(file)])] == ["c", "mlflow", "b", "a"]
    assert rules.load([]) == ()


@pytest.mark.parametrize("name", ["openai-embedding", "OPENAI-EMBEDDINGS", "", "v1", " mlflow"])
def test_name_that_is_no_built_in_rule_is_told_with_those_that_are(name: str):
    told = refusal(name)
    assert told.startswith(f"{name!r} is no built-in rule; those are openai-embeddings, tei-embed, ")
    assert told.endswith("A file has a / or ends in .yaml")
    assert all(each in told for each in rules.built_in())


def test_same_name_twice_is_refused():
    assert refusal("mlflow", "mlflow") == "two rules of --lists have the name 'mlflow'"
    assert "two rules of --lists have the name 'mlflow'" in refusal(json.dumps({"mlflow": LEAST}), "mlflow")


@pytest.mark.parametrize("ending", [".yaml", ".yml", ".json"])
def test_file_is_known_by_its_ending_or_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str):
    monkeypatch.chdir(tmp_path)
    for name in (f"mine{ending}", "./mine"):
        Path(name).write_text(json.dumps({"mine": LEAST}))
        assert rules.load([name]) == (loaded(),)


def test_file_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path):
    missing, broken, large = (str(tmp_path / name) for name in ("no.yaml", "latin.yaml", "large.yaml"))
    Path(broken).write_bytes(b"mine: {path: /caf\xe9}")
    Path(large).write_text("#" * (1024 * 1024 + 1))
    assert refusal(missing) == f"{missing} cannot be read: No such file or directory"
    assert refusal(str(tmp_path) + "/") == f"{tmp_path}/ cannot be read: Is a directory"
    assert refusal(broken) == f"{broken} cannot be read: it is not UTF-8"
    assert refusal(large) == f"{large} is larger than 1048576 characters"


def test_error_in_a_file_names_the_file_the_rule_and_the_field(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "good:\n  {path: /b, list: x, answers: y}\nbad:\n  {path: /a, list: x, answers: y, scalar: no-such}\n"
    )
    told = refusal(str(file))
    assert told.startswith(f"{file}: rule 'bad': field 'scalar': Input should be 'wrapped', 'unwrapped', 'by_row' or ")
    assert told.endswith("'alone'; given: 'no-such'")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("mine:\n  path: [a\n  list: b\n", 3),
        ("mine:\n  path: a\n list: b\n", 3),
        ("mine:\n  path: a\n  path: b\n", 3),
        ("mine:\n\tpath: a\n", 2),
        ("mine:\n  path: !!python/object:os.system a\n", 2),
        ('{"mine": {"path": }', 1),
    ],
)
def test_mistake_in_yaml_is_told_with_its_line(tmp_path: Path, text: str, line: int):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert refusal(str(file)).startswith(f"{file}, line {line}: ")
    assert refusal(text).startswith(f"{HERE}, line {line}: ")


@pytest.mark.parametrize("text", ["- mine\n- yours\n", "{}", "# nothing\n#\n", "mine\nyours", "---\na: 1\n---\nb: 2\n"])
def test_text_that_is_no_mapping_of_names_is_refused(text: str):
    assert refusal(text).startswith(HERE)


def test_deeply_nested_text_is_refused():
    assert refusal("{a: " + "[" * 20_000).startswith(HERE)


@pytest.mark.parametrize("name", ["", "Mine", "my embedder", "-mine", "mine.", "a" * 64, "é", 7, None, True])
def test_name_of_a_rule_is_a_short_word(name: Any):
    told = refusal(f"{{{json.dumps(name)}: {json.dumps(LEAST)}}}")
    assert told == f"{HERE}: {name!r} is no name of a rule: allowed are a-z, 0-9, '-', '_' and '.', at most 63"


@pytest.mark.parametrize("fields", [None, [], "path", 7])
def test_rule_that_is_no_mapping_is_refused(fields: Any):
    told = refusal(json.dumps({"mine": fields}))
    assert told == f"{HERE}: rule 'mine': must be a mapping of fields, such as path, list and answers"


# --- fields -----------------------------------------------------------------------------------------------------


def test_least_rule_has_a_path_a_list_and_answers():
    rule = loaded()
    assert (rule.name, rule.scalar, rule.index, rule.max_batch_size) == ("mine", "alone", None, None)
    assert not any([rule.token_ids, rule.along, rule.shared, rule.ignore, rule.one_query])


@pytest.mark.parametrize("field", ["path", "list", "answers"])
def test_what_a_rule_cannot_be_without_is_named(field: str):
    assert refusal_of(**{field: "-"}) == f"{HERE}: rule 'mine': field '{field}': is required"


def test_unknown_field_is_told_with_those_that_there_are():
    told = refusal_of(lists="x")
    assert told.startswith(f"{HERE}: rule 'mine': field 'lists': there is no such field; allowed are ")
    for field in ("about", "path", "list", "along", "scalar", "token_ids", "answers", "index", "shared", "ignore"):
        assert f" {field}," in told
    assert told.endswith(", extends")
    assert "rows" not in told
    assert "the field 'name' is not allowed" in refusal_of(name="x")


def test_all_mistakes_of_a_rule_are_told_at_once():
    told = refusal_of(scalar="no", max_batch_size=0, path="-")
    assert [each.split("'")[3] for each in told.split("; ") if "field" in each] == ["path", "scalar", "max_batch_size"]


PLACE = " is no place: allowed are $, names like a or a.b, and a.* for every list in a"
VALUE = " is not the place of one value: allowed are names like a or a.b"
PATH = " is no path: it begins with / or **/, and has no ?, # or space"


def cases(fields: str, values: list[Any], words: str) -> list[tuple[str, Any, str]]:
    return [(field, value, words.format(value)) for field in fields.split() for value in values]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        *cases("list answers", ["a..b", ".a", "a.*.b", "$.a", "a b", ""], f"{{!r}}{PLACE}"),
        *cases("list answers along", [[7], [None], [["a"]]], "a place is a text: "),
        *cases("list answers path", [[]], "must have at least one"),
        *cases("along shared alone_with alone_if", ["$", "a.*"], f"{{!r}}{VALUE}"),
        *cases("along shared alone_with alone_if", ["a..b"], PLACE),
        *cases("path one_query", ["embed", "/a?b", "/a b", "", "/é", "*/a"], f"{{!r}}{PATH}"),
        *cases("path one_query", ["/a**/b"], "** stands for whole segments"),
        *cases("index ignore", ["a.b", ""], "is not the name of one member"),
        *cases("path", [7], "given: 7"),
        *cases("scalar", [True], "'wrapped', 'unwrapped', 'by_row' or 'alone'; given: True"),
        *cases("token_ids same_members", ["yes", 1], "valid boolean; given: {!r}"),
        *cases("kinds", [["text"]], "'string', 'list', 'object' or 'number'; given: 'text'"),
        *cases("index about", [0], "valid string; given: 0"),
        *cases("max_batch_size", [0, -1, 100_001, 1.5, "32", True], "given: {!r}"),
        *cases("key_headers", ["a b", "a:", ""], "{!r} is no name of a header"),
    ],
)
def test_value_that_a_field_cannot_have_is_told_with_what_is_allowed(field: str, value: Any, words: str):
    told = refusal_of(**{field: value})
    assert told.startswith(f"{HERE}: rule 'mine': field '{field}': ")
    assert words in told


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ignore": ["texts"]}, "'ignore' names 'texts', which holds the rows or what goes along them"),
        ({"list": "a.*", "ignore": ["user", "a"]}, "'ignore' names 'a'"),
        ({"along": "frame.index", "ignore": "frame"}, "'ignore' names 'frame'"),
        ({"along": "texts.ids"}, "'along' names 'texts.ids', which is in a place of 'list', or holds one"),
        ({"list": "a.b", "along": "a"}, "'along' names 'a'"),
        ({"along": ["x", "x"]}, "'along' names a place twice"),
        ({"shared": ["n", "m", "n"]}, "'shared' names a place twice"),
        ({"list": ["x", "a.*"], "token_ids": True}, "'token_ids' does not go with a 'list' of columns"),
        ({"list": "a.*", "scalar": "wrapped"}, "'scalar' must be alone with a 'list' of columns"),
        ({"answers": ["x", "a.*"], "index": "i"}, "'index' does not go with 'answers' in columns"),
        ({"answers": "x", "answers_along": "x.y"}, "'answers_along' names 'x.y', which is in a place of 'answers'"),
        ({"answers_along": ["n", "n"]}, "'answers_along' names a place twice"),
        ({"rank_by": "score"}, "'rank_by' needs 'index'"),
        ({"rank_by": "score", "index": "i", "scalar": "wrapped"}, "and 'scalar' alone"),
        ({"top": "k"}, "'top' needs 'rank_by'"),
        ({"list": "x", "rank_by": "score", "index": "i", "top": "x"}, "and is not where the rows are"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], words: str):
    told = refusal_of(**fields)
    assert told.startswith(f"{HERE}: rule 'mine': ")
    assert words in told


def test_one_value_may_stand_for_a_list_of_one():
    fields = (
        "path",
        "list",
        "along",
        "answers",
        "shared",
        "ignore",
        "one_query",
        "kinds",
        "key_headers",
        "alone_with",
        "alone_if",
    )
    assert loaded(answers_along="echo") == loaded(answers_along=["echo"])
    ranked = {"rank_by": "score", "top": "k", "index": "i"}
    assert loaded(**ranked) == loaded(**{**ranked, "rank_by": ["score"], "top": ["k"]})
    one = {name: "/x" if name in ("path", "one_query") else "string" if name == "kinds" else name for name in fields}
    assert loaded(**one) == loaded(**{name: [value] for name, value in one.items()})


# --- extends ----------------------------------------------------------------------------------------------------


def test_rule_that_extends_another_has_its_fields_but_for_its_own():
    base = rules.built_in()["openai-embeddings"]
    (rule,) = rules.load([json.dumps({"mine": {"extends": "openai-embeddings", "path": "/x", "max_batch_size": 7}})])
    assert rule.name == "mine"
    assert (rule.matches("/x"), rule.matches("/v1/embeddings"), rule.max_batch_size) == (True, False, 7)
    assert rule.model_copy(update={name: getattr(base, name) for name in ("name", "paths", "max_batch_size")}) == base


@pytest.mark.parametrize("name", sorted(rules.built_in()))
def test_every_built_in_rule_can_be_extended(name: str):
    (rule,) = rules.load([json.dumps({"mine": {"extends": name}})])
    assert rule.model_copy(update={"name": name}) == rules.built_in()[name]


@pytest.mark.parametrize("base", ["mine", "yours", "no-such"])
def test_only_built_in_rules_can_be_extended(base: str):
    text = json.dumps({"yours": LEAST, "mine": {"extends": base}})
    assert refusal(text).startswith(f"{HERE}: rule 'mine': field 'extends': {base!r} is no built-in rule; those are ")


@pytest.mark.parametrize("base", [["mlflow"], {"a": 1}, 7, True])
def test_base_that_is_no_name_is_refused(base: Any):
    assert "field 'extends'" in refusal(json.dumps({"mine": {"extends": base}}))


def test_mistake_in_a_rule_that_extends_another_is_its_own():
    told = refusal(json.dumps({"mine": {"extends": "mlflow", "answers": "a..b"}}))
    assert told.startswith(f"{HERE}: rule 'mine': field 'answers': 'a..b'{PLACE}")


# --- paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "taken", "others"),
    [
        ("/embed", ["/embed"], ["/embed/", "/x/embed", "/embedding", "/Embed", "//embed", "embed", ""]),
        ("**/embed", ["/embed", "/v1/embed", "/a/b/embed"], ["/embed/x", "/v1embed", "/xembed", "/v1/embed?x"]),
        ("/v1/*/embed", ["/v1/a/embed", "/v1/a.b/embed"], ["/v1/embed", "/v1//embed", "/v1/a/b/embed"]),
        ("/v1/**/embed", ["/v1/embed", "/v1/a/embed", "/v1/a/b/embed"], ["/v1", "/v1/", "/v1/xembed"]),
        ("/models/*:predict", ["/models/m:predict"], ["/models/:predict", "/models/a/m:predict", "/models/m:predictx"]),
        ("/", ["/"], ["", "/a", "//"]),
        ("/v1/**", ["/v1", "/v1/", "/v1/a", "/v1/a/b"], ["/v1a", "/v"]),
        ("/a.b+c", ["/a.b+c"], ["/axb+c", "/a.bb+c"]),
    ],
)
def test_path_pattern_has_stars_for_characters_and_for_segments(pattern: str, taken: list[str], others: list[str]):
    rule = loaded(path=pattern, one_query=[pattern])
    assert [path for path in (*taken, *others) if rule.matches(path)] == taken
    assert [path for path in (*taken, *others) if rule.has_one_query(path)] == taken


# --- errors of our own ------------------------------------------------------------------------------------------


def test_our_own_errors_have_the_shape_that_the_rule_gives_them():
    shape = {"error": {"message": "no: $message", "type": "$reason", "code": "$status", "all": ["$status", None, 1.5]}}
    told = loaded(error=shape).render_error('a "quote"', 429, "queue_full")
    inner = {"message": 'no: a "quote"', "type": "queue_full", "code": 429, "all": [429, None, 1.5]}
    assert json.loads(told) == {"error": inner}
    assert json.loads(loaded().render_error("x", 500, "y")) == {"error": "x"}


@pytest.mark.parametrize("words", ["$status", "$reason and $status", "$message"])
def test_words_of_an_error_are_not_filled_in_again(words: str):
    told = loaded(error={"error": "said: $message"}).render_error(words, 500, "y")
    assert json.loads(told) == {"error": f"said: {words}"}


def test_what_is_no_text_is_told_without_words_of_python():
    with pytest.raises(ValueError, match=r"rule 'r': field 'list': must be a text or a list of texts; given: 5"):
        rules.load(["{r: {path: /x, list: 5, answers: a}}"])


def test_an_error_that_holds_itself_is_refused():
    with pytest.raises(ValueError, match="'error' cannot be written as JSON, or holds itself"):
        rules.load(["{r: {path: /x, list: a, answers: a, error: &e {x: *e}}}"])
