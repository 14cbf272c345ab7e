"""Scenes: what is declared of each server, how answers are compared, what the table says."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import sys
import time
from typing import Any

import pytest

from benchmarks import client, command_line
from benchmarks.peers import environments
from benchmarks.scenes import __main__ as program
from benchmarks.scenes import asking, catalogue, chart, questions, quiet, scene, stage, tables
from carpool_sidecar import config
from tests import marks

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "scenes.md"
SCENES = pytest.mark.parametrize("each", catalogue.SCENES, ids=lambda each: each.name)
PLAN = stage.Plan(callers=4, seconds=1.0, rounds=2)
FACTS: dict[str, Any] = {
    "command": "python -m benchmarks.scenes",
    "date": "2026-11-27T10:00:00+00:00",
    "machine": {"cpu": "a processor", "usable_cores": 2, "python": "3.11.7"},
    "sidecar": "python",
}
FIRST = catalogue.SCENES[0]


def measured(way: str, rate: float, wrong: int = 0, difference: float = 0.0) -> stage.Round:
    batch = 8.0 if way == stage.WITH else None
    return stage.Round(way, rate, 0.02, 0.04, 1 / rate, 100, wrong, difference, 0.1, {}, batch)


def played(*rounds: stage.Round, absence: str = "", name: str = FIRST.name) -> tables.Played:
    outcome = stage.Outcome(name, "1.0", absence, list(rounds))
    return {name: tables.entry(outcome, PLAN, FACTS)}


class TestCatalogue:
    def test_every_scene_has_a_name_of_its_own(self) -> None:
        assert len({each.name for each in catalogue.SCENES}) == len(catalogue.SCENES)

    @SCENES
    def test_everything_a_scene_installs_is_pinned_and_comes_from_the_index(self, each: scene.Scene) -> None:
        for file in each.pins:
            text = re.sub(r"(?m) \\$", "", file.read_text())
            lines = [line for line in text.splitlines() if line and not line.lstrip().startswith(("#", "--hash"))]
            assert all(re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==[^ ]+( ?;.*)?$", line) for line in lines)
            assert "://" not in text
        assert stage.version(each) in "".join(file.read_text() for file in each.pins)

    @SCENES
    def test_its_commands_have_no_place_that_nobody_fills(self, each: scene.Scene, tmp_path: pathlib.Path) -> None:
        place = scene.Place(tmp_path, (1234, 1235, 1236), tmp_path / "bin")
        env = stage.variables(each, place)
        words = [*place.words(each.command), *place.words(each.make), *env.values()]
        assert "{" not in " ".join(words)
        programs = [word for word in words if word.startswith(str(scene.SERVERS)) and word.endswith(".py")]
        assert all(pathlib.Path(program).is_file() for program in programs)

    @SCENES
    def test_the_sidecar_takes_its_flags(self, each: scene.Scene) -> None:
        assert config.load([*each.sidecar, "--component-port", "1"])

    @SCENES
    def test_a_question_holds_all_rows_of_a_request(self, each: scene.Scene) -> None:
        rows = asking.items(each.items, 3)
        for question in filter(None, (each.question, each.own)):
            text = json.dumps(question.body(rows))
            flat = [value for row in rows for value in (row if isinstance(row, list) else [row])]
            assert all(json.dumps(value) in text for value in flat)

    def test_scenes_are_chosen_by_name_and_by_server(self) -> None:
        assert [each.name for each in catalogue.select(["mlserver-linear"])] == ["mlserver-linear"]
        assert {each.server for each in catalogue.select(["mlserver"])} == {"MLServer"}
        assert catalogue.select([]) == list(catalogue.SCENES)
        with pytest.raises(ValueError, match=r"no scene mlservre; there are mlserver-forest"):
            catalogue.select(["mlservre"])

    def test_what_each_needs_is_told_without_installing_anything(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.main(["--list"]) == 0
        out = capsys.readouterr().out
        assert all(each.name in out for each in catalogue.SCENES)
        assert all(each.server in out for each in catalogue.MISSING)

    def test_the_page_names_every_server(self) -> None:
        text = PAGE.read_text()
        assert f"<!-- figures: made by {tables.COMMAND} -->" in text
        assert {each.server for each in catalogue.SCENES if each.server not in text} == set()


class TestQuestions:
    def test_a_tensor_of_the_answer_is_cut_into_rows_whether_flat_or_nested(self) -> None:
        question = questions.v2_table("/v2/models/m/infer", "predict")
        assert question.body([[1, 2], [3, 4]])["inputs"][0] == {
            "name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, 4],
        }  # fmt: skip
        for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
            assert question.answers({"outputs": [{"shape": [2, 2], "data": data}]}) == [[1, 2], [3, 4]]
        assert question.answers({"outputs": [{"shape": [3, 1], "data": [7, 8, 9]}]}) == [7, 8, 9]

    def test_texts_are_a_column_where_the_server_wants_one(self) -> None:
        shapes = [questions.v2_texts("/", shape).body(["a", "b"])["inputs"][0]["shape"] for shape in (1, 2)]
        assert shapes == [[2], [2, 1]]

    def test_openai_clients_send_a_single_text_as_a_text(self) -> None:
        question = questions.openai_embeddings("/v1/embeddings", "m")
        assert [question.body(rows)["input"] for rows in (["a"], ["a", "b"])] == ["a", ["a", "b"]]
        assert question.answers({"data": [{"embedding": [1.0]}]}) == [[1.0]]

    def test_a_list_of_ones_own_may_be_the_whole_answer(self) -> None:
        assert questions.own_list("/", "texts", None).answers([[1]]) == [[1]]
        assert questions.own_list("/", "texts", "vectors").answers({"vectors": [[1]]}) == [[1]]
        assert questions.v1("/").answers({"predictions": [2]}) == [2]


class TestDifference:
    @pytest.mark.parametrize(
        ("one", "other", "found"),
        [
            ([[1.0, 2.0]], [[1.0, 2.5]], 0.5),
            ({"label": "a", "score": 0.5}, {"label": "a", "score": 0.25}, 0.25),
            ([], [], 0.0),
            (1, 1.0, 0.0),
            ("a", "b", math.inf),
            ([1], [1, 2], math.inf),
            ([1], 1, math.inf),
            (True, 1, math.inf),
            ({"a": 1}, {"b": 1}, math.inf),
            (None, None, 0.0),
        ],
    )
    def test_is_the_largest_of_any_number_and_infinite_for_all_else(self, one: Any, other: Any, found: float) -> None:
        assert asking.difference(one, other) == found
        assert asking.difference(other, one) == found


class TestRequests:
    QUESTION = questions.v1("/predict")

    def test_each_row_is_in_as_many_requests_as_a_request_has_rows(self) -> None:
        for each in (1, 2, 3):
            requests = asking.Requests(self.QUESTION, ["a", "b", "c"], each)
            bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in requests.once()]
            sent = [row for body in bodies for row in body["instances"]]
            assert len(bodies) == 3
            assert sorted(sent) == sorted(["a", "b", "c"] * each)

    def test_another_rows_answer_is_wrong_whoever_else_was_answered_right(self) -> None:
        requests = asking.Requests(self.QUESTION, ["a", "b", "c"])
        expected = [[1.0], [2.0], [3.0]]
        for number, found in enumerate([[[1.0]], [[2.0 + 1e-7]], [[1.0]], [[1.0]]]):  # the fourth is the first's again
            requests.keep(number, 200, json.dumps({"predictions": found}).encode())
        wrong, largest = requests.check(expected, 1e-6)
        assert wrong == 1
        assert largest == pytest.approx(1e-7)
        assert requests.check(expected, 0.0) == (0, 0.0)  # none is kept any more

    @pytest.mark.parametrize("body", [b"oops", b"[]", b"{}", b'{"predictions":[]}', b'{"predictions":[1,2]}'])
    def test_an_answer_of_another_form_is_wrong(self, body: bytes) -> None:
        requests = asking.Requests(self.QUESTION, ["a"])
        requests.keep(0, 200, body)
        assert requests.check([1], 1.0) == (1, 0.0)
        requests.keep(0, 200, body)
        with pytest.raises(ValueError, match="answer"):
            requests.answers()

    def test_refusals_are_no_answers(self) -> None:
        requests = asking.Requests(self.QUESTION, ["a"])
        requests.keep(0, 429, b"")
        assert requests.check([1], 0.0) == (0, 0.0)

    def test_headers_of_a_question_are_sent(self) -> None:
        question = dataclasses.replace(self.QUESTION, headers={"Authorization": "Bearer x"})
        (request,) = asking.Requests(question, ["a"]).once()
        assert b"Authorization: Bearer x\r\n" in request
        assert client.JSON["Content-Type"].encode() in request

    def test_rows_are_the_same_each_time_and_all_different(self) -> None:
        for kind in scene.Items:
            rows = asking.items(kind)
            assert rows == asking.items(kind)
            assert len({json.dumps(row) for row in rows}) == len(rows) == asking.DISTINCT


class TestQuiet:
    def test_a_round_waits_for_others_to_be_quiet_and_no_longer_than_its_patience(self) -> None:
        now = 0.0

        def look(shares: list[float]) -> quiet.Look:
            def look_once(_: Any) -> float:
                nonlocal now
                now += 1
                return shares.pop(0)

            return look_once

        assert quiet.wait([], 20.0, look([0.9, 0.5, 0.1, 0.9]), lambda: now) == 0.1
        assert quiet.wait([], 3.0, look([0.9, 0.8, 0.7, 0.0]), lambda: now) == 0.7
        assert quiet.wait([], 0.0, look([])) == 0.0

    def test_programs_of_the_scene_are_not_others(self) -> None:
        nobody, mine = quiet.Cores([]), quiet.Cores([os.getpid()])
        deadline = time.process_time() + 0.2
        while time.process_time() < deadline:
            pass
        assert mine.others() < nobody.others()
        assert mine.own() >= 0.1
        assert nobody.own() == 0.0


class TestTables:
    ROUNDS = (
        measured(stage.WITHOUT, 100), measured(stage.OWN, 200), measured(stage.WITH, 400),
        measured(stage.WITHOUT, 50), measured(stage.OWN, 100), measured(stage.WITH, 200),
    )  # fmt: skip

    def test_a_gain_is_that_of_the_medians_in_the_table(self) -> None:
        rounds = played(*self.ROUNDS)[FIRST.name]["outcome"]["rounds"]
        ours = tables.figures(rounds, stage.WITH)
        assert ours is not None
        assert (ours.rate, ours.gain, ours.mean_batch) == (300, 4.0, 8.0)
        assert tables.figures(rounds, "nobody") is None

    def test_a_row_has_all_three_ways(self) -> None:
        (row,) = tables.table(played(*self.ROUNDS), catalogue.SCENES).rows
        assert {"75.0", "150 (2.0x)", "300 (4.0x)", "20 / 40", "8.0", "15.00 / 3.75 (4.0x)", "equal", "10%"} <= set(row)

    @pytest.mark.parametrize(
        ("rate", "wrong", "words"),
        [
            (400, 0, "4.0 times as many answers"),
            (104, 0, "changes next to nothing"),
            (50, 0, "does not pay"),
            (400, 3, "3 answers"),
        ],
    )
    def test_it_says_where_batching_does_not_pay_and_where_answers_are_wrong(
        self, rate: float, wrong: int, words: str
    ) -> None:
        found = played(measured(stage.WITHOUT, 100), measured(stage.WITH, rate, wrong))
        (line,) = tables.verdicts(found, catalogue.SCENES)
        assert words in line
        assert f"{wrong} wrong" in tables.page(found, catalogue.SCENES) or not wrong

    def test_answers_a_second_are_no_gain_where_others_took_the_cores(self) -> None:
        rounds = [dataclasses.replace(each, others=0.8) for each in self.ROUNDS]
        (line,) = tables.verdicts(played(*rounds), catalogue.SCENES)
        assert "4.0 times as many rows for the same processor time" in line
        assert "answers" not in line

    def test_who_was_not_played_is_named_with_the_reason(self) -> None:
        text = tables.page(played(absence="no Java"), catalogue.SCENES)
        assert f"{tables.title(FIRST)}: no Java" in text
        assert "2026-11-27" not in text

    def test_the_page_is_renewed_between_its_marks_alone(self) -> None:
        old, new = (marks.block("figures", "a command", text) for text in ("old", "new\n"))
        other = marks.block("others", "a command", "old")
        page = f"before\n{other}\n{old}\nafter\n"
        assert marks.renewed(page, "figures", "a command", "new") == f"before\n{other}\n{new}\nafter\n"
        assert marks.names(page) == ["others", "figures"]
        with pytest.raises(ValueError, match="there is no"):
            marks.renewed("no marks", "figures", "a command", "new")

    def test_a_run_of_one_scene_leaves_the_others_figures(self, tmp_path: pathlib.Path) -> None:
        file = tmp_path / "scenes.json"
        assert tables.read(file) == {}
        tables.write(file, played(*self.ROUNDS))
        tables.write(file, tables.read(file) | played(absence="none", name="other"))
        assert set(tables.read(file)) == {FIRST.name, "other"}
        file.write_text("[]")
        with pytest.raises(ValueError, match="has no scenes"):
            tables.read(file)

    def test_figures_are_shown_and_put_into_a_page_without_playing(self, tmp_path: pathlib.Path) -> None:
        file, page = tmp_path / "scenes.json", tmp_path / "page.md"
        tables.write(file, played(*self.ROUNDS))
        page.write_text(marks.block("figures", tables.COMMAND, ""))
        assert program.main(["--from", str(file), "--page", str(page)]) == 0
        assert "2026-11-27; a processor, 2 cores" in page.read_text()
        assert "300 (4.0x)" in page.read_text()

    def test_the_same_figures_give_the_same_picture(self, tmp_path: pathlib.Path) -> None:
        files = [tmp_path / "one.svg", tmp_path / "two.svg"]
        assert all(chart.draw(played(*self.ROUNDS), catalogue.SCENES, file) for file in files)
        assert files[0].read_bytes() == files[1].read_bytes()
        assert not chart.draw(played(absence="none"), catalogue.SCENES, tmp_path / "none.svg")
        assert not (tmp_path / "none.svg").exists()


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> scene.Scene:
    """A scene whose server is the bundled one with the echo model, in an environment that is this one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments, "_run", lambda command: None)
    pins = tmp_path / "pins.txt"
    pins.write_text("echo==1.0\n")
    python = environments.program(stage.cache(), "echo")
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return scene.Scene(
        name="echo",
        server="Echo",
        model="echo",
        package="echo",
        pins=[pins],
        items=scene.Items.ROWS,
        command="{python} -m carpool_predictor --models echo --port {port}",
        ready="/readyz",
        question=questions.v1("/v1/models/echo:predict"),
        own=questions.v1("/v1/models/echo:predict"),
    )


class TestPlaying:
    WAYS = (stage.WITHOUT, stage.OWN, stage.MANY, stage.WITH)
    PLAN = stage.Plan(callers=4, seconds=0.2, rounds=2, patience=0.0, warm_up=0.1)

    def test_all_ways_take_turns_and_every_answer_is_the_rows_own(self, installed: scene.Scene) -> None:
        said: list[str] = []
        outcome = stage.play(installed, self.PLAN, said.append)
        assert (outcome.version, outcome.absence) == ("1.0", "")
        ways = [each.way for each in outcome.rounds]
        assert ways == [*self.WAYS, *self.WAYS[1:], self.WAYS[0]]
        assert all(each.requests and not each.errors and not each.wrong for each in outcome.rounds)
        assert all((each.mean_batch is not None) == (each.way == stage.WITH) for each in outcome.rounds)
        assert any("one by one" in line for line in said)

    def test_a_server_that_answers_otherwise_than_its_scene_says_is_told(self, installed: scene.Scene) -> None:
        wrong = dataclasses.replace(
            installed, question=questions.own_list("/v1/models/echo:predict", "instances", "no")
        )
        with pytest.raises(stage.SceneFailed, match="unexpected answer") as failed:
            stage.play(wrong, self.PLAN, lambda text: None)
        assert "catalogue.py" in failed.value.advice

    def test_a_path_that_nobody_answers_is_told(self, installed: scene.Scene) -> None:
        wrong = dataclasses.replace(installed, question=questions.v1("/nowhere"))
        with pytest.raises(stage.SceneFailed, match="64 x status 404"):
            stage.play(wrong, self.PLAN, lambda text: None)

    def test_a_model_that_cannot_be_made_is_told_with_its_words(self, installed: scene.Scene) -> None:
        wrong = dataclasses.replace(installed, make="{python} -c raise(SystemExit('no_more_disk'))")
        with pytest.raises(stage.SceneFailed, match="no_more_disk"):
            stage.play(wrong, self.PLAN, lambda text: None)


class TestProgram:
    def test_a_scene_that_lacks_something_is_named_and_is_no_failure_of_its_own(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lacking = dataclasses.replace(FIRST, lacks=lambda: "no Java on PATH")
        monkeypatch.setattr(catalogue, "SCENES", (lacking,))
        file = tmp_path / "scenes.json"
        assert program.main(["--json", str(file)]) == 1  # nothing was measured
        assert "left out: no Java on PATH" in capsys.readouterr().out
        assert tables.read(file)[FIRST.name]["outcome"]["absence"] == "no Java on PATH"

    def test_a_failure_is_told_with_the_next_step_and_kept(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: object) -> stage.Outcome:
            raise stage.SceneFailed("it broke", "mend it")

        monkeypatch.setattr(stage, "play", fail)
        file = tmp_path / "scenes.json"
        assert program.main(["--only", FIRST.name, "--json", str(file)]) == 1
        out = capsys.readouterr().out
        assert "it broke" in out
        assert "mend it" in out
        assert tables.read(file)[FIRST.name]["outcome"]["absence"] == "it broke"

    def test_ctrl_c_ends_it_with_its_own_status(self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
        def interrupt(*_: object) -> stage.Outcome:
            raise KeyboardInterrupt

        monkeypatch.setattr(stage, "play", interrupt)
        arguments = ["--only", FIRST.name, "--json", str(tmp_path / "scenes.json")]
        assert program.main(arguments) == command_line.INTERRUPTED
