"""Trains a classifier on made numbers and saves it: `table_model.py forest|linear FILE`.

A forest of 200 trees has a large fixed cost a call, whatever the number of rows; a linear model has next to none.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import joblib
import numpy as np
from sklearn import ensemble, linear_model

COLUMNS, ROWS = 12, 4000
MODELS: dict[str, Any] = {
    "forest": lambda: ensemble.RandomForestClassifier(200, random_state=1),
    "linear": lambda: linear_model.LogisticRegression(max_iter=1000),
}


def train(kind: str) -> Any:
    """The classifier, always the same."""
    source = np.random.default_rng(1)
    table = source.normal(size=(ROWS, COLUMNS))
    labels = np.digitize(table[:, 0] + table[:, 1] * table[:, 2] + source.normal(size=ROWS) / 4, [-0.5, 0.5])
    return MODELS[kind]().fit(table, labels)


def save(kind: str, file: str) -> None:
    """Put it where a server looks for it."""
    pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(train(kind), file)


if __name__ == "__main__":
    save(*sys.argv[1:3])
