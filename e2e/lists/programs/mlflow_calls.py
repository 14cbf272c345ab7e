"""Calls of MLflow's own client of its scoring server, all at the same time, a thread each.

Standard input is a JSON object: `addresses`, which are called one after another, and `calls`, a list of objects with
`params` and one of `frame` (columns, sent as `dataframe_split`), `array` (sent as `inputs`) and `list` (the same).
Standard output has for each address a list with one object for each call, in their order: `value`, what the client made
of the answer, or `error` with what it raised.

It runs in the environment `mlflow`; the tests read its output (`e2e/lists/callers.py`).
"""

from __future__ import annotations

import json
import sys
from concurrent import futures
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.scoring_server import client as scoring


def _data(call: dict[str, Any]) -> Any:
    if "frame" in call:
        return pd.DataFrame(call["frame"])
    return np.array(call["array"]) if "array" in call else call["list"]


def _call_all(address: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    client = scoring.ScoringServerClient(*address.split(":"))

    def one(call: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"value": dict(client.invoke(_data(call), call.get("params")))}
        except Exception as error:  # whatever the client raises is the result
            return {"error": {"class": type(error).__qualname__, "message": str(error)}}

    with futures.ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump([_call_all(address, asked["calls"]) for address in asked["addresses"]], sys.stdout)
