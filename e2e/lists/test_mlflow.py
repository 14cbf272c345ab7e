"""MLflow's scoring server and its own client: all forms of a body, parameters, refusals. Every answer is exact."""

from __future__ import annotations

from typing import Any

from e2e.lists import alike, answers, callers, conftest, peers
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

RULES = "mlflow"
COLUMNS = ["a", "b", "name"]


def _row(number: int) -> dict[str, Any]:
    return {"a": number, "b": number + 0.5, "name": f"name {number} 猫"}


def _asked(value: Any, **more: Any) -> callers.Question:
    return callers.question("/invocations", value, **more)


def _forms(number: int) -> list[callers.Question]:
    """The same one or two rows in every form that MLflow takes."""
    rows = [_row(number), _row(number + 1)]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    data = [[row[name] for name in COLUMNS] for row in rows]
    params = {"weight": 2.0, "label": f"of {number % 2}: "}
    return [
        _asked({"dataframe_split": {"columns": COLUMNS, "data": data}}),
        _asked({"dataframe_split": {"index": [number, 7], "columns": COLUMNS, "data": data}}),
        _asked({"dataframe_split": {"columns": COLUMNS, "data": data[:1]}, "params": params}),
        _asked({"dataframe_split": {"columns": COLUMNS[::-1], "data": [each[::-1] for each in data]}}),
        _asked({"dataframe_records": rows}),
        _asked({"dataframe_records": rows[:1], "params": params}),
        _asked({"instances": rows}),
        _asked({"inputs": rows}),
        _asked({"inputs": columns}),
        _asked({"inputs": {name: columns[name][:1] for name in COLUMNS}, "params": params}),
        _asked({"inputs": rows[0]}),
    ]


RIGHT = [question for number in (1, 2, 2.5, -3) for question in _forms(number)]
ROW = _row(1)
WRONG = [
    _asked({"dataframe_records": [{"a": 1, "b": 2}]}),
    _asked({"dataframe_records": [ROW, {"a": 1}]}),
    _asked({"dataframe_records": [{**ROW, "a": "x"}]}),
    _asked({"dataframe_records": [{**ROW, "name": "make the model fail"}]}),
    _asked({"dataframe_records": [ROW], "params": {"weight": "x"}}),
    _asked({"dataframe_records": []}),
    _asked({"dataframe_split": {"columns": COLUMNS, "data": [[1, 2]]}}),
    _asked({"dataframe_split": {"columns": ["a"], "data": [[1]]}}),
    _asked({"dataframe_split": {"data": [[1, 2, "x"]]}}),
    _asked({"dataframe_split": {"index": [1, 2], "columns": COLUMNS, "data": [[1, 2, "x"]]}}),
    _asked({"inputs": {"a": [1, 2], "b": [1], "name": ["x"]}}),
    _asked({"inputs": [ROW], "instances": [ROW]}),
    _asked({"instances": [1]}),
    _asked([ROW]),
    callers.Question("/invocations", b'{"dataframe_records": [{"a": 1'),
    callers.Question("/invocations", b"a,b,name\n1,2,x\n", {"content-type": "text/csv"}),
]


async def test_each_of_many_gets_what_it_gets_alone(mlflow_frame: servers.Server, before: conftest.Starts) -> None:
    front = before(mlflow_frame, RULES)
    await alike.in_batches(mlflow_frame, front, RIGHT, 3, more_than=3)


async def test_right_and_wrong_requests_at_once_get_what_they_get_alone(
    mlflow_frame: servers.Server, before: conftest.Starts
) -> None:
    front = before(mlflow_frame, RULES)
    await alike.mixed(mlflow_frame, front, [*RIGHT, *WRONG], 2)


async def test_rows_of_arrays_share_batches(mlflow_tensor: servers.Server, before: conftest.Starts) -> None:
    front = before(mlflow_tensor, RULES)
    rows = [[[number, number + 0.25]] * (1 + number % 3) for number in range(20)]
    asked = [_asked({name: each}) for each in rows for name in ("inputs", "instances")]
    asked += [_asked({"inputs": [[1, 2, 3]]}), _asked({"inputs": [1, 2]}), _asked({"inputs": [["a", "b"]]})]
    alone = await callers.one_by_one(mlflow_tensor.http, asked)
    changes = sidecar_.Changes(front)
    found = await callers.at_once(front.http, asked)
    for question, one, other in zip(asked, found, alone, strict=True):
        answers.assert_same(one, other, question)
    assert changes.mean_batch > 3


async def test_mlflows_client_gets_the_same_through_the_sidecar(
    mlflow_client: peers.Environment, mlflow_frame: servers.Server, before: conftest.Starts
) -> None:
    frames = [
        {name: [_row(number)[name], _row(number + 1)[name]] for name in COLUMNS} for number in (1, 5, 0.25, -2, 100, 7)
    ]
    calls: list[dict[str, Any]] = [{"frame": frame} for frame in frames]
    calls += [{"frame": frame, "params": {"weight": 3.0}} for frame in frames]
    calls += [{"list": [_row(number)]} for number in range(6)]
    calls += [{"frame": {"a": [1]}}, {"list": [{**ROW, "name": "make the model fail"}]}]
    front = before(mlflow_frame, RULES)
    changes = sidecar_.Changes(front)
    alone, found = await _run(mlflow_client, [mlflow_frame.http, front.http], calls)
    assert found == alone
    assert ["error" in result for result in found] == [False] * (len(calls) - 2) + [True] * 2
    assert changes.mean_batch > 2


async def test_mlflows_client_sends_arrays(
    mlflow_client: peers.Environment, mlflow_tensor: servers.Server, before: conftest.Starts
) -> None:
    calls: list[dict[str, Any]] = [{"array": [[number, 0.5]] * (1 + number % 2)} for number in range(8)]
    addresses = [mlflow_tensor.http, before(mlflow_tensor, RULES).http]
    alone, found = await _run(mlflow_client, addresses, calls)
    assert found == alone
    assert all("value" in result for result in found)


async def _run(
    environment: peers.Environment, addresses: list[str], calls: list[dict[str, Any]]
) -> list[callers.Results]:
    return await callers.run_program(environment, "mlflow_calls.py", {"addresses": addresses, "calls": calls}, {})
