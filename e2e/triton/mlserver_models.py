"""The models that MLServer serves in the tests, laid out as it wants them.

Their program is `models/mlserver_runtime.py`; it runs inside MLServer, under the Python of its environment.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping

PROGRAM = pathlib.Path(__file__).with_name("models") / "mlserver_runtime.py"


def write(folder: pathlib.Path, settings: Mapping[str, object]) -> None:
    """Lay out two models: `identity` and `add`. `settings` are MLServer's own, above all its ports."""
    # No worker processes and no batching of its own: one model in one process, as small as it gets.
    (folder / "settings.json").write_text(json.dumps({"debug": False, "parallel_workers": 0, **settings}))
    _write_model(folder, "identity", "Identity", {"rows": "FP32"}, {"rows_out": "FP32"})
    _write_model(folder, "add", "Add", {"a": "FP32", "b": "FP32"}, {"sum": "FP32"})


def _write_model(
    folder: pathlib.Path, name: str, runtime: str, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> None:
    model = folder / name
    model.mkdir()
    shutil.copyfile(PROGRAM, model / f"runtime_of_{name}.py")
    settings = {
        "name": name,
        "implementation": f"runtime_of_{name}.{runtime}",
        "inputs": _tensors(inputs),
        "outputs": _tensors(outputs),
    }
    (model / "model-settings.json").write_text(json.dumps(settings))


def _tensors(datatypes: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"name": name, "datatype": datatype, "shape": [-1, -1]} for name, datatype in datatypes.items()]
