"""KServe's Python server with the forest, as its own server for scikit-learn has it. `kserve_app.py PORT`.

That server (`sklearnserver`) is no package of its own: what it does with a request is in the package `kserve`, the
rest is a line of scikit-learn.
"""

from __future__ import annotations

import sys
from typing import Any

import kserve
import table_model
from kserve.utils.utils import get_predict_input, get_predict_response


class Forest(kserve.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("forest")
        self._model = table_model.train("forest")
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        # PREDICT_PROBA=true there
        return get_predict_response(payload, self._model.predict_proba(get_predict_input(payload)), self.name)


if __name__ == "__main__":
    kserve.ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([Forest()])
