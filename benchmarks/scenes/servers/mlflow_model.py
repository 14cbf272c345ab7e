"""Saves the forest as a model of MLflow: `mlflow_model.py FOLDER`."""

from __future__ import annotations

import sys

import mlflow.sklearn
import numpy as np
import table_model
from mlflow import models

if __name__ == "__main__":
    forest = table_model.train("forest")
    example = np.zeros((1, table_model.COLUMNS))
    signature = models.infer_signature(example, forest.predict_proba(example))
    mlflow.sklearn.save_model(
        forest,
        sys.argv[1],
        signature=signature,
        pyfunc_predict_fn="predict_proba",
        skops_trusted_types=["sklearn.tree._tree.Tree"],  # of the forest that was made above
    )
