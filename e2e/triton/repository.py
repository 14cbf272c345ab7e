"""The models that the tests use, laid out as Triton and as MLServer expect them.

Their programs are in `models/` and run inside the servers, under the Python of their environments.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PROGRAMS = pathlib.Path(__file__).with_name("models")

# Triton's datatypes, by what its configuration calls them.
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
    "BF16",
)  # fmt: skip

# As NVIDIA's optimization guide advises: "no preferred batch sizes for most models", a delay of a fraction of the
# model's own time, one instance because the model is one device.
_DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 1000 }"
_SEQUENCES = """\
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
    { name: "END" control [{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }] }
  ]
}"""
MLSERVERS_PROGRAM = PROGRAMS / "mlserver_runtime.py"


class Tensor(NamedTuple):
    """A tensor without its batch dimension; -1 is any size."""

    name: str
    datatype: str
    dims: Sequence[int] = (-1,)


class Model(NamedTuple):
    """`program` is a file of `models/`; `more` goes into the configuration as it is."""

    name: str
    program: str
    max_batch_size: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    more: str = ""
    versions: int = 1
    is_optional: bool = False  # all inputs


_ROWS, _ROWS_OUT = (Tensor("rows", "FP32"),), (Tensor("rows_out", "FP32"),)
_TEXT, _VECTORS = (Tensor("text", "BYTES", (1,)),), Tensor("vectors", "FP32", (2,))
_ANYTHING = (*(Tensor(datatype.lower(), datatype) for datatype in DATATYPES), Tensor("matrix", "FP32", (-1, -1)))

MODELS = (
    Model("identity", "identity", 32, _ROWS, _ROWS_OUT),
    Model(
        "anything", "identity", 32, _ANYTHING, [each._replace(name=f"{each.name}_out") for each in _ANYTHING],
        is_optional=True,
    ),
    Model(
        "add_sub", "add_sub", 32, (Tensor("a", "FP32"), Tensor("b", "FP32")),
        (Tensor("sum", "FP32"), Tensor("difference", "FP32")),
    ),
    Model(
        "strings", "strings", 32, (Tensor("text", "BYTES", (1,)),),
        (Tensor("upper", "BYTES", (1,)), Tensor("length", "INT32", (1,))),
    ),
    Model("marked", "marked", 32, _ROWS, _ROWS_OUT),
    Model("total", "total", 32, _ROWS, (Tensor("total", "FP32"),)),
    Model("unbatched", "identity", 0, _ROWS, _ROWS_OUT),
    Model("sequence", "sequence", 8, (Tensor("rows", "FP32", (1,)),), (Tensor("sum", "FP32", (1,)),), _SEQUENCES),
    Model(
        "decoupled", "decoupled", 8, (Tensor("count", "INT32", (1,)),), (Tensor("number", "INT32", (1,)),),
        "model_transaction_policy { decoupled: true }",
    ),
    Model("small", "sizes", 4, _ROWS, (*_ROWS_OUT, Tensor("together", "INT32", (1,)))),
    Model("scaled", "scaled", 32, _ROWS, _ROWS_OUT),
    Model("versioned", "identity", 32, _ROWS, _ROWS_OUT, "version_policy { all {} }", versions=2),
    Model("slow", "slow", 64, _ROWS, _ROWS_OUT),
    Model("slow_dynamic", "slow", 64, _ROWS, _ROWS_OUT, _DYNAMIC),
    Model("embedder", "embedder", 8, _TEXT, (Tensor("hidden", "FP32", (-1, 2)), _VECTORS)),
    Model("token_embedder", "embedder", 8, (Tensor("ids", "INT64"),), (Tensor("vectors", "FP64", (2,)),)),
    Model("lone_embedder", "embedder", 0, _TEXT, (_VECTORS,)),
)  # fmt: skip


def write(repository: pathlib.Path, models: Sequence[Model] = MODELS) -> None:
    """Lay the models out: `NAME/config.pbtxt` and `NAME/VERSION/model.py` each."""
    for model in models:
        for version in range(1, model.versions + 1):
            folder = repository / model.name / str(version)
            folder.mkdir(parents=True)
            shutil.copyfile(PROGRAMS / f"{model.program}.py", folder / "model.py")
        (repository / model.name / "config.pbtxt").write_text(configuration(model))


def configuration(model: Model) -> str:
    """The text of `config.pbtxt`."""
    optional = " optional: true" if model.is_optional else ""
    return "\n".join(
        [
            'backend: "python"',
            f"max_batch_size: {model.max_batch_size}",
            *(f"input [{{ {_tensor(each)}{optional} }}]" for each in model.inputs),
            *(f"output [{{ {_tensor(each)} }}]" for each in model.outputs),
            "instance_group [{ count: 1 kind: KIND_CPU }]",
            model.more,
            "",
        ]
    )


def _tensor(tensor: Tensor) -> str:
    datatype = {"BYTES": "STRING"}.get(tensor.datatype, tensor.datatype)
    return f'name: "{tensor.name}" data_type: TYPE_{datatype} dims: {list(tensor.dims)}'


def write_for_mlserver(folder: pathlib.Path, settings: Mapping[str, object]) -> None:
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
    shutil.copyfile(MLSERVERS_PROGRAM, model / f"runtime_of_{name}.py")
    settings = {
        "name": name,
        "implementation": f"runtime_of_{name}.{runtime}",
        "inputs": _tensors(inputs),
        "outputs": _tensors(outputs),
    }
    (model / "model-settings.json").write_text(json.dumps(settings))


def _tensors(datatypes: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"name": name, "datatype": datatype, "shape": [-1, -1]} for name, datatype in datatypes.items()]
