"""Lays out Triton's repository: `triton_models.py FOLDER SERVER`, the model twice, once with a dynamic batcher.

Its Python backend looks for modules beside the model only. The package has that backend's stub for each version of
Python; one of them goes where Triton looks for it.
"""

from __future__ import annotations

import pathlib
import shutil
import sys

CONFIGURATION = """\
backend: "python"
max_batch_size: 32
input [{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "vectors" data_type: TYPE_FP32 dims: [ 384 ] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""
BATCHING = {"plain": "", "batching": "dynamic_batching { max_queue_delay_microseconds: 1000 }\n"}


def main() -> None:
    """Write both models, and put the stub in its place."""
    folder, server = map(pathlib.Path, sys.argv[1:3])
    for name, more in BATCHING.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        for source, target in (("triton_model.py", "model.py"), ("sentences.py", "sentences.py")):
            shutil.copyfile(pathlib.Path(__file__).with_name(source), version / target)
        (version.parent / "config.pbtxt").write_text(CONFIGURATION + more)
    stub = server / "backends" / "python" / "triton_python_backend_stub"
    if not stub.exists():
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        shutil.copy2(server / "python_backend_stubs" / python / stub.name, stub)


if __name__ == "__main__":
    main()
