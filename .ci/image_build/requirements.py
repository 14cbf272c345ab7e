"""Runs in the build stage of the predictor's image: decides which packages pip installs for a build of torch.

    python3 requirements.py none|cpu|cuda [SHA256]

reads sidecar.txt and predictor.txt, the pinned requirements of both, and writes requirements.txt, and torch.txt where
torch comes from an index of its own. That build has files of its own (2.15.0+cpu, say) whose hashes cannot be part of
requirements compiled against the default index: its version is pinned, and its hash if one is given.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import predictor_packages

# The sidecar's readiness probes speak gRPC; the predictor does not.
NOT_OF_THE_PREDICTOR = re.compile(r"grpcio==")


def without(requirements: str, unwanted: re.Pattern[str]) -> str:
    """The same requirements, hashes included, less those whose pins match."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", requirements)
    return "".join(block for block in blocks if not unwanted.match(block))


def files(torch: str, sha256: str, sidecar: str, predictor: str) -> dict[str, str]:
    """File name to content: what to install from the default index, and what from the index of torch's CPU builds."""
    if torch == "none":
        return {"requirements.txt": without(sidecar, NOT_OF_THE_PREDICTOR)}
    if torch == "cuda":
        return {"requirements.txt": predictor}
    pin = f"torch=={predictor_packages.torch_version(predictor)}" + (f" --hash=sha256:{sha256}" if sha256 else "")
    return {"requirements.txt": predictor_packages.without_torch(predictor), "torch.txt": f"{pin}\n"}


def main() -> None:
    torch, sha256 = sys.argv[1], "".join(sys.argv[2:])
    if torch not in ("none", "cpu", "cuda"):
        sys.exit(f"error: TORCH is {torch!r}; allowed: none, cpu, cuda")
    for name, content in files(
        torch, sha256, Path("sidecar.txt").read_text(), Path("predictor.txt").read_text()
    ).items():
        Path(name).write_text(content)


if __name__ == "__main__":
    main()
