"""MLflow models, saved to a folder for MLflow's own scoring server.

    python e2e/lists/servers/mlflow_model.py frame FOLDER    a, b (double) and name (string); params weight, label
    python e2e/lists/servers/mlflow_model.py tensor FOLDER   rows of two float64

Rows do not depend on each other: each prediction comes from its row and the parameters. Both have signatures, as MLflow
advises; a model without one sees types that depend on all rows of a call.
"""

from __future__ import annotations

import sys
from typing import Any

import mlflow.models
import mlflow.pyfunc
import mlflow.types
import numpy as np
import pandas as pd


class Frame(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """`weight * a + b` and the name in capitals. Raises for a name that is marked."""

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        given = params or {}
        if (model_input["name"] == "make the model fail").any():
            raise ValueError("a row is marked")
        sums = given.get("weight", 1.0) * model_input["a"] + model_input["b"]
        names = given.get("label", "") + model_input["name"].str.upper()
        return pd.DataFrame({"sum": sums, "name": names})


class Tensor(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Each row twice."""

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> Any:
        return 2 * model_input


def main() -> None:
    kind, folder = sys.argv[1:]
    if kind == "frame":
        columns = [("double", "a"), ("double", "b"), ("string", "name")]
        params = [mlflow.types.ParamSpec("weight", "double", 1.0), mlflow.types.ParamSpec("label", "string", "")]
        schema = mlflow.types.Schema([mlflow.types.ColSpec(*column) for column in columns])
        signature = mlflow.models.ModelSignature(schema, params=mlflow.types.ParamSchema(params))
        model: Any = Frame()
    else:
        row = mlflow.types.TensorSpec(np.dtype(np.float64), (-1, 2))
        signature = mlflow.models.ModelSignature(mlflow.types.Schema([row]))
        model = Tensor()
    mlflow.pyfunc.save_model(folder, python_model=model, signature=signature, pip_requirements=[])


if __name__ == "__main__":
    main()
