"""`python -m benchmarks.fuzz`: fuzzes what reads bytes from the network, with Atheris (libFuzzer for Python).

Without a target each one runs in turn, in a process of its own. What was found stays in out/fuzz/TARGET for the next
run; an input that breaks a promise is kept beside it, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import subprocess
import sys

from benchmarks.fuzz import targets

OUT = pathlib.Path("out") / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", nargs="*", metavar="TARGET", help="what to fuzz, of --list (default: everything)")
    parser.add_argument("--list", action="store_true", help="list the targets, and end")
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz each (default: %(default)s)")
    arguments, options = parser.parse_known_args()
    if unknown := [*(set(arguments.target) - set(targets.TARGETS)), *(each for each in options if each[:1] != "-")]:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(targets.TARGETS)}")
    if arguments.list:
        for name, about in targets.TARGETS.items():
            print(f"{name:15}{about.promise}")
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("error: Atheris is not installed: `make fuzz` installs it (Linux, Python 3.11 to 3.13)", file=sys.stderr)
        return 2
    broken = []
    for name in arguments.target or targets.TARGETS:
        folder = OUT / name
        (folder / "corpus").mkdir(parents=True, exist_ok=True)
        print(f"{name}: {targets.TARGETS[name].promise}, {arguments.seconds} s", flush=True)
        told = [f"-max_total_time={arguments.seconds}", f"-artifact_prefix={folder}/", *options, f"{folder}/corpus"]
        program = f"from benchmarks.fuzz import targets; targets.run({name!r}, {told!r})"
        with (folder / "log").open("w") as log:
            ended = subprocess.run([sys.executable, "-c", program], stdout=log, stderr=subprocess.STDOUT, check=False)
        lines = (folder / "log").read_text(errors="replace").splitlines()
        print("  " + next((line for line in reversed(lines) if line.startswith(("Done", "#"))), "nothing was run"))
        if ended.returncode:
            broken.append(name)
            print(f"  broken, exit {ended.returncode}: {folder}/log has what failed, {folder}/crash-* the input")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
