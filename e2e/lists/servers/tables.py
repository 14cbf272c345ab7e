"""KServe's Python server with models of scikit-learn, XGBoost and LightGBM behind /v1/models/NAME:predict.

Each does what KServe's own server of that package does: `get_predict_input` makes one table or array of all instances,
the package predicts, `get_predict_response` answers. A model weighs columns by their place, so that order shows.

    python e2e/lists/servers/tables.py PORT
"""

from __future__ import annotations

import sys
from typing import Any

import kserve
import lightgbm
import numpy as np
import xgboost
from kserve.errors import InferenceError
from kserve.utils.utils import get_predict_input, get_predict_response
from sklearn import linear_model

COLUMNS = ["a", "b", "c"]


class Table(kserve.Model):  # type: ignore[misc]
    """What all have in common."""

    def __init__(self, name: str, model: Any) -> None:
        super().__init__(name)
        self._model = model
        self.ready = True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """As KServe's: whatever the package raises is an `InferenceError`, which is answered 500."""
        try:
            return get_predict_response(payload, self.answer(payload), self.name)
        except Exception as error:
            raise InferenceError(str(error)) from error

    def answer(self, payload: Any) -> Any:
        """The package's answer."""
        return self._model.predict(get_predict_input(payload))


class XGBoost(Table):
    """As `xgbserver`."""

    def answer(self, payload: Any) -> Any:
        return self._model.predict(xgboost.DMatrix(get_predict_input(payload), nthread=1))


class LightGBM(Table):
    """As `lgbserver`, which chooses the columns that the model knows."""

    def answer(self, payload: Any) -> Any:
        return self._model.predict(get_predict_input(payload, columns=self._model.feature_name()))


def main() -> None:
    """Train on numbers that are the same each time."""
    table = np.random.default_rng(1).integers(0, 100, (500, len(COLUMNS))).astype(float)
    sums = table @ np.array([100.0, 10.0, 1.0])
    few = {"num_threads": 1, "verbose": -1, "deterministic": True, "seed": 1}
    booster = xgboost.train({"nthread": 1, "max_depth": 5}, xgboost.DMatrix(table, sums), 20)
    leaves = lightgbm.train(few, lightgbm.Dataset(table, sums, feature_name=COLUMNS), 20)
    models = [
        Table("sklearn", linear_model.LinearRegression().fit(table, sums)),
        XGBoost("xgboost", booster),
        LightGBM("lightgbm", leaves),
    ]
    kserve.ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start(models)


if __name__ == "__main__":
    main()
