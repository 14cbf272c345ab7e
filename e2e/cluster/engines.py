"""The container engine that kind makes nodes with: docker or podman, whichever works on this machine.

Docker's daemon answers or does not. Podman has no daemon and always answers; whether it can run a node depends on its
configuration, which is made for machines with systemd. Where that does not fit, podman is given a configuration of our
own by environment: the machine's own files stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster import archives, binaries, processes

PROVIDER = "KIND_EXPERIMENTAL_PROVIDER"
DOCKER, PODMAN = "docker", "podman"
CONFIGURATION = "CONTAINERS_CONF"
ANSWER_SECONDS, TRIAL_SECONDS = 15.0, 60.0
# Where distributions keep podman's helpers.
HELPERS = tuple(Path(folder) for folder in ("/usr/lib/podman", "/usr/libexec/podman", "/usr/local/libexec/podman"))
RUNTIMES = ("crun", "runc")
# With one of these netavark makes its rules, newer ones with the second.
FIREWALLS = ("iptables", "nft")
# kind shows it to nodes, and podman refuses to mount what does not exist.
MODULES = Path("/lib/modules")
CAP_SYS_RESOURCE = 24
MOST_FILES = 1 << 20  # what podman itself asks for
TRIAL = "carpool-engine-trial"


class Engine(NamedTuple):
    """An engine, and what its program and kind have to find in their environment to use it."""

    name: str
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Machine:
    """What decides how podman has to be configured."""

    systemd: bool = True  # runs here, and with it the journal
    unified: bool = True  # control groups of version 2 alone
    may_raise_limits: bool = True
    files: int = 0  # open files and processes that a program here may have at most
    processes: int = 0
    modules: bool = True  # MODULES is there
    helpers: frozenset[str] = frozenset()  # the programs that podman calls which are here


class Setting(NamedTuple):
    """A line of containers.conf: its table, name and value as TOML, and what it is for."""

    table: str
    name: str
    value: str
    reason: str

    @property
    def line(self) -> str:
        return f"{self.name} = {self.value}"


# --- Finding one ------------------------------------------------------------------------------------------------------


def look(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), modules: Path = MODULES) -> Machine:
    """This machine, with the folder that nodes are shown, which is made where that is allowed."""
    status = (proc / "self" / "status").read_text()
    helpers = (file.name for folder in HELPERS if folder.is_dir() for file in folder.iterdir())
    held = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), "0")
    return Machine(
        systemd=Path("/run/systemd/system").is_dir(),
        unified=(cgroups / "cgroup.controllers").exists(),
        may_raise_limits=bool(int(held, 16) >> CAP_SYS_RESOURCE & 1),
        files=limit(resource.RLIMIT_NOFILE, MOST_FILES),
        # podman gives itself no more than there are process ids, and then nobody that it starts can have more.
        processes=limit(resource.RLIMIT_NPROC, int((proc / "sys" / "kernel" / "pid_max").read_text())),
        modules=provide_modules(modules),
        helpers=frozenset([*helpers, *(name for name in (*RUNTIMES, *FIREWALLS) if shutil.which(name))]),
    )


def provide_modules(folder: Path) -> bool:
    """Whether the folder is there; makes it where that is allowed, as docker does."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
    return folder.is_dir()


def limit(what: int, most: int) -> int:
    """The hard limit of this process, or `most` where that is less."""
    hard = resource.getrlimit(what)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def find(run: processes.Run = processes.run, machine: Callable[[], Machine] = look) -> Engine | None:
    """The engine to use; None where there is none, and `lacking` says why.

    KIND_EXPERIMENTAL_PROVIDER, with which kind itself is told what to use, leaves only the one that it names. A private
    configuration is written where podman needs one.
    """
    if wanted(DOCKER) and docker_answers(run):
        return Engine(DOCKER, {})
    if not wanted(PODMAN):
        return None
    facts = podman_facts(run)
    if facts is None:
        return None
    here = machine()
    if missing_for_podman(here, facts):
        return None
    changed = settings(here, facts)
    own = {CONFIGURATION: str(write_configuration(here, facts))} if changed and not configured() else {}
    # By default kind uses Docker where its client is installed, even if the engine does not answer.
    return Engine(PODMAN, {PROVIDER: PODMAN, **own})


def lacking(run: processes.Run = processes.run, machine: Callable[[], Machine] = look) -> list[str]:
    """Why no engine can be used, each reason with what to do; empty where one can."""
    if find(run, machine) is not None:
        return []
    facts = podman_facts(run) if wanted(PODMAN) else None
    if facts is not None:
        return missing_for_podman(machine(), facts)
    named = os.environ.get(PROVIDER)
    who = f"{named}, which {PROVIDER} names, does not answer" if named else "neither docker nor podman answers"
    return [f"{who}, and kind needs one; start docker, or install podman"]


# What podman needs on any machine.
PACKAGES = ("podman", "netavark", "aardvark-dns", "iptables", "runc")


def missing_packages(run: processes.Run = processes.run, machine: Callable[[], Machine] = look) -> list[str]:
    """The Debian packages without which there is no engine; none where one answers."""
    if docker_answers(run):
        return []
    if podman_facts(run) is None:
        return list(PACKAGES)
    return packages_for(machine())


def wanted(name: str) -> bool:
    return os.environ.get(PROVIDER, "") in ("", name)


def configured() -> bool:
    """Whether somebody has named a configuration of podman in the environment: it stays as it is."""
    return bool(os.environ.get(CONFIGURATION))


def docker_answers(run: processes.Run) -> bool:
    """Whether Docker's daemon does; its client alone is no engine."""
    done = run(DOCKER, "info", "--format", "{{.ServerVersion}}", seconds=ANSWER_SECONDS)
    return done.status == 0 and bool(done.output.strip())


def podman_facts(run: processes.Run) -> dict[str, Any] | None:
    """What podman tells of its settings; None where there is no podman, or it cannot read its configuration."""
    done = run(PODMAN, "info", "--format", "json", seconds=ANSWER_SECONDS)
    try:
        return dict(json.loads(done.output)["host"]) if done.status == 0 else None
    except (ValueError, KeyError):
        return None


# --- podman's configuration -------------------------------------------------------------------------------------------


def settings(here: Machine, facts: Mapping[str, Any]) -> list[Setting]:
    """The lines that podman's configuration lacks on this machine."""
    found = []
    if not here.systemd and facts.get("cgroupManager") != "cgroupfs":
        reason = "no systemd runs here that could make control groups"
        found.append(Setting("engine", "cgroup_manager", '"cgroupfs"', reason))
    if not here.systemd and facts.get("eventLogger") == "journald":
        found.append(Setting("engine", "events_logger", '"file"', "no journal runs here"))
    if not here.unified and runtime(facts) == "crun":
        reason = "crun refuses control groups of version 1 beside version 2"
        found.append(Setting("engine", "runtime", '"runc"', reason))
    if facts.get("networkBackend") != "netavark":
        reason = "the nodes find each other by name, which podman's older networks do not offer"
        found.append(Setting("network", "network_backend", '"netavark"', reason))
    if not here.may_raise_limits:
        reason = "CAP_SYS_RESOURCE is missing, without which nobody gets more than this"
        limits = f'["nofile={here.files}:{here.files}", "nproc={here.processes}:{here.processes}"]'
        found.append(Setting("containers", "default_ulimits", limits, reason))
    return found


def runtime(facts: Mapping[str, Any]) -> str:
    return str(facts.get("ociRuntime", {}).get("name", ""))


def missing_for_podman(here: Machine, facts: Mapping[str, Any]) -> list[str]:
    """What stops podman from running nodes on this machine, each with what to do about it."""
    found = []
    if packages := packages_for(here):
        found.append(f"podman lacks {', '.join(packages)}")
    if not here.modules:
        found.append(f"there is no folder {MODULES}, which kind shows to its nodes (it may be empty)")
    if configured():
        # The limits do not show in what podman tells of itself, and may be right.
        shown = [each for each in settings(here, facts) if each.name != "default_ulimits"]
        found += [
            f"in {os.environ[CONFIGURATION]}, which {CONFIGURATION} names, [{each.table}] lacks {each.line}"
            f" ({each.reason}); add it, or unset {CONFIGURATION}"
            for each in shown
        ]
    return found


def packages_for(here: Machine) -> list[str]:
    """The Debian packages that podman lacks to run nodes here."""
    lacks = [name for name in ("aardvark-dns", "netavark") if name not in here.helpers]
    if here.helpers.isdisjoint(FIREWALLS):
        lacks.append("iptables")
    if not here.unified and "runc" not in here.helpers:
        lacks.append("runc")
    return lacks


def write_configuration(here: Machine, facts: Mapping[str, Any]) -> Path:
    """A containers.conf with what is lacking beside what the machine's own has: podman reads the one or the other."""
    lines = {each.name: each for each in kept(facts)}
    lines |= {each.name: each for each in settings(here, facts)}
    text = "# Made by python -m e2e.cluster; podman reads it where CONTAINERS_CONF names it.\n"
    for table in sorted({each.table for each in lines.values()}):
        text += f"\n[{table}]\n"
        text += "".join(f"# {each.reason}\n{each.line}\n" for each in lines.values() if each.table == table)
    folder = binaries.cache_folder() / "kind"
    folder.mkdir(exist_ok=True)
    file = folder / "containers.conf"
    if not file.exists() or file.read_text() != text:
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        partial.write_text(text)
        partial.replace(file)
    return file


def kept(facts: Mapping[str, Any]) -> list[Setting]:
    """What the machine's own configuration says."""
    named = {
        "cgroup_manager": facts.get("cgroupManager"),
        "events_logger": facts.get("eventLogger"),
        "runtime": runtime(facts),
    }
    return [Setting("engine", name, json.dumps(value), "as on this machine") for name, value in named.items() if value]


# --- Trying it --------------------------------------------------------------------------------------------------------


def failing_trial(engine: Engine, run: processes.Run = processes.run) -> str:
    """Starts a privileged container as kind does, and removes it with its image. Returns what went wrong, or ""."""
    archive = archives.pause_archive()

    def ask(*words: str) -> processes.Done:
        return run(engine.name, *words, seconds=TRIAL_SECONDS, environment=engine.environment)

    name = f"{TRIAL}-{os.getpid()}"
    try:
        for words in (
            ("load", "--input", str(archive)),
            ("run", "--detach", "--privileged", "--name", name, f"--volume={MODULES}:{MODULES}:ro", archives.PAUSE_TAG),
        ):
            done = ask(*words)
            if done.status:
                return f"`{engine.name} {' '.join(words)}` failed: {done.words}"
    finally:
        ask("rm", "--force", "--volumes", name)
        ask("rmi", archives.PAUSE_TAG)
    return ""


def demand(run: processes.Run = processes.run, machine: Callable[[], Machine] = look) -> Engine:
    """The engine to use. Raises binaries.Unavailable with the reasons where there is none."""
    if found := find(run, machine):
        return found
    raise binaries.Unavailable(f"no container engine works for kind here: {'; '.join(lacking(run, machine))}")
