"""Lays out TorchServe: `torchserve_models.py FOLDER PORT MANAGEMENT METRICS`, the same model alone and in batches.

`max_batch_delay` is in milliseconds.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

BATCHING = {"plain": (1, 0), "batching": (32, 10)}


def main() -> None:
    """Archive the handler, and write the configuration."""
    folder, ports = pathlib.Path(sys.argv[1]), sys.argv[2:5]
    store = folder / "store"
    store.mkdir()
    handler = str(pathlib.Path(__file__).with_name("torchserve_handler.py"))
    models = {}
    for name, (size, delay) in BATCHING.items():
        archiver = [str(pathlib.Path(sys.executable).with_name("torch-model-archiver")), "--model-name", name]
        subprocess.run([*archiver, "--version", "1.0", "--handler", handler, "--export-path", str(store)], check=True)
        models[name] = {
            "1.0": {
                "defaultVersion": True,
                "marName": f"{name}.mar",
                "minWorkers": 1,
                "maxWorkers": 1,
                "batchSize": size,
                "maxBatchDelay": delay,
                "responseTimeout": 300,
            }
        }
    addresses = zip(("inference", "management", "metrics"), ports, strict=True)
    lines = [f"{name}_address=http://127.0.0.1:{port}" for name, port in addresses]
    snapshot = {"name": "startup.cfg", "modelCount": len(models), "models": models}
    lines += [f"model_snapshot={json.dumps(snapshot)}", f"model_store={store}", "disable_token_authorization=true"]
    (folder / "config.properties").write_text("\n".join(lines) + "\n")
    shutil.rmtree(folder / "logs", ignore_errors=True)


if __name__ == "__main__":
    main()
