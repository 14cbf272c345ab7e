"""Lays out the models of MLServer: `mlserver_models.py forest|linear|sentences FOLDER PORT`.

Each is there twice, `plain` and `batching`, the second with adaptive batching as MLServer's documents have it.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

BATCHING = {"max_batch_size": 32, "max_batch_time": 0.01}


def main() -> None:
    """Write settings and models."""
    kind, folder, (http, grpc, metrics) = sys.argv[1], pathlib.Path(sys.argv[2]), map(int, sys.argv[3:6])
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "debug": False, **ports}))
    for name, batching in (("plain", {}), ("batching", BATCHING)):
        place = folder / name
        place.mkdir()
        settings = {"name": name, **batching, **_implementation(kind, place, name)}
        (place / "model-settings.json").write_text(json.dumps(settings))


def _implementation(kind: str, place: pathlib.Path, name: str) -> dict[str, object]:
    if kind == "sentences":  # a runtime of one's own, as its documents call it; a module's name is known only once
        shutil.copyfile(pathlib.Path(__file__).with_name("mlserver_runtime.py"), place / f"runtime_{name}.py")
        return {"implementation": f"runtime_{name}.Sentences"}
    import table_model  # only the tables' environment has what it needs

    table_model.save(kind, str(place / "model.joblib"))
    return {
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib", "version": "1"},
    }


if __name__ == "__main__":
    main()
