"""A cluster of two nodes in the namespaces of one machine: for where there is no container engine.

Addresses, packet filters, mounts and processes are in namespaces that end with their first process. Outside are a
folder, the control groups of the pods, and one veth pair. All of it is found again by the cluster's name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes.config
import urllib3

from e2e.cluster import archives, binaries, client, interface, processes
from e2e.cluster.local import cgroups, network, node, requirements

ROOT = Path(__file__).parents[3]
NODES = ("node-1", "node-2")
START_SECONDS, API_SERVER_SECONDS, NODES_SECONDS, END_SECONDS = 10.0, 90.0, 90.0, 20.0
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
# The first process reaps what the programs leave behind, which is what shells do.
SHELL = ("bash", "-c", '"$@"; exit', "first-process")
PROC = Path("/proc")


class Local:
    """See interface.Cluster."""

    def __init__(self, name: str, family: str = "", proc: Path = PROC) -> None:
        """`family` is one of interface.FAMILIES; "" is that of the cluster that is there, else IPv4.

        `proc` is where the kernel tells which processes run.
        """
        self.name = interface.check_name(name)
        self.nodes = NODES
        self._proc = proc
        self.folder = binaries.cache_folder() / "clusters" / name
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self._wanted_family = family
        self._facts = self.folder / "cluster.json"
        self._cgroup = f"carpool-{name}"
        self._outer: subprocess.Popen[bytes] | None = None  # around the first process, where this object started it
        self._program = ["-m", "e2e.cluster.local.supervisor", str(self.folder)]

    @property
    def address(self) -> str:
        if not self._told():
            raise interface.Problem(f"no cluster {self.name} is up")
        return self._plan().node(1)

    @property
    def family(self) -> str:
        return str(self._told().get("family") or self._wanted_family or interface.FAMILIES[0])

    @property
    def ingress(self) -> str:
        return f"http://{interface.in_url(self.address)}:{interface.INGRESS_NODE_PORT}"

    # --- Up and down -------------------------------------------------------------------------------------------------

    def up(self) -> None:
        with self._one_at_a_time():
            self._up()

    def _up(self) -> None:
        if self.is_up():
            if self._wanted_family not in ("", self.family):
                raise interface.Problem(
                    f"{self.name} is up already, with {self.family}: `make cluster-down` removes it"
                )
            # The program that brought it up may have been stopped before it was done.
            self._prepare_nodes(archives.pause_archive())
            binaries.say(f"{self.name} is up already")
            return
        self._down()
        if missing := requirements.missing():
            reasons = "\n".join(f"  {reason}" for reason in missing)
            raise binaries.Unavailable(f"this machine cannot host a local cluster:\n{reasons}")
        executable, pause = binaries.provide_kubernetes(), archives.pause_archive()
        start = time.monotonic()
        try:
            self._start(executable)
            binaries.say(f"the API server answers after {time.monotonic() - start:.0f} s")
            self._prepare_nodes(pause)
        except BaseException:
            self._end_processes()  # the logs stay
            raise
        binaries.say(f"{len(NODES)} nodes are Ready after {time.monotonic() - start:.0f} s")

    def down(self) -> None:
        with self._one_at_a_time():
            self._down()

    def _down(self) -> None:
        self._end_processes()
        if self._told():
            network.unlink_from_this_machine(self.name, self._plan())
        cgroups.remove(self._cgroup)
        shutil.rmtree(self.folder, ignore_errors=not self.folder.exists())

    def exists(self) -> bool:
        return self.folder.exists()

    def is_up(self) -> bool:
        if self._first_process() is None or not self.kubeconfig.exists():
            return False
        try:
            client.Client(self.kubeconfig).list("Node")
        # The last one: a kubeconfig that is being written.
        except (client.Refused, urllib3.exceptions.HTTPError, OSError, kubernetes.config.ConfigException):
            return False
        return True

    def _one_at_a_time(self) -> contextlib.AbstractContextManager[None]:
        """A lock for all clusters of this machine: each looks for a free subnet and removes what a crash left."""
        return binaries.one_at_a_time(binaries.cache_folder() / "clusters.lock")

    def _start(self, executable: Path) -> None:
        """Returns when the API server answers."""
        self.folder.mkdir(parents=True)
        for group in (self._cgroup, *(f"{self._cgroup}/{name}" for name in NODES)):
            cgroups.make(group)
        plan = network.Plan(self.family, network.free_subnet(self.family))
        told = {"nodes": NODES, "executable": str(executable), "cgroup": self._cgroup, **plan._asdict()}
        self._facts.write_text(json.dumps(told, indent=2))
        with (self.folder / "supervisor.log").open("ab") as log:
            self._outer = outer = subprocess.Popen(
                [*NAMESPACES, *SHELL, sys.executable, *self._program],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it goes on when the program that started it ends
            )
        self._wait_for(outer, self._first_process, START_SECONDS, "the first process")
        network.link_to_this_machine(self.name, plan, self._first_process() or outer.pid)
        self._wait_for(outer, self.is_up, API_SERVER_SECONDS, "the API server")

    def _wait_for(self, outer: subprocess.Popen[bytes], is_there: Callable[[], Any], seconds: float, what: str) -> None:
        """Raises interface.Problem with the log's end when time is up, or the cluster has ended."""
        try:
            processes.eventually(lambda: outer.poll() is not None or is_there(), seconds, f"{what} is there")
        except TimeoutError as late:
            raise interface.Problem(f"{late}\n{processes.tail(self.folder / 'supervisor.log')}") from None
        if outer.poll() is not None:
            raise interface.Problem(f"the cluster has ended\n{processes.tail(self.folder / 'supervisor.log')}")

    def _prepare_nodes(self, pause: Path) -> None:
        sockets = [node.socket_of(self.folder / name) for name in NODES]
        admin = client.Client(self.kubeconfig)
        try:
            processes.eventually(lambda: all(each.exists() for each in sockets), NODES_SECONDS, "containerd listens")
            self.load(pause)
            processes.eventually(lambda: interface.ready(admin) == set(NODES), NODES_SECONDS, "the nodes are Ready")
        except TimeoutError as late:
            logs = [self.folder / name / log for name in NODES for log in ("node.log", "kubelet.log")]
            raise interface.Problem("\n".join([str(late), *map(processes.tail, logs)])) from None

    def _end_processes(self) -> None:
        if self._outer is not None:
            self._outer.kill()  # this ends the first process too, even before it can be found by its command
            self._outer.wait(END_SECONDS)
        if first := self._first_process():
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)  # and with it, by the kernel, all others in its namespace
            processes.eventually(lambda: self._first_process() is None, END_SECONDS, f"process {first} has ended")

    # --- Use ---------------------------------------------------------------------------------------------------------

    def load(self, archive: Path) -> None:
        for name in self.nodes:
            socket = node.socket_of(self.folder / name)
            network.run("ctr", "--address", str(socket), "--namespace", "k8s.io", "images", "import", str(archive))

    def restart(self, component: str) -> None:
        ended = self._processes_of(component)
        if not ended:
            raise interface.Problem(f"no {component} runs in {self.name}")
        for pid in ended:
            os.kill(pid, signal.SIGKILL)  # as a crash does; an API server takes a minute to end after SIGTERM

        def replaced() -> bool:
            now = self._processes_of(component)
            return len(now) >= len(ended) and not set(now) & set(ended) and self.is_up()

        processes.eventually(replaced, API_SERVER_SECONDS, f"{component} runs again")

    def _processes_of(self, component: str) -> list[int]:
        first = self._first_process()
        return beside(first, [self._told()["executable"], component], self._proc) if first else []

    def _first_process(self) -> int | None:
        return next(iter(of_command(SHELL[0], self._program, self._proc)), None)

    def _plan(self) -> network.Plan:
        """The addresses of the cluster that is there."""
        return network.Plan(self.family, self._told()["subnet"])

    def _told(self) -> dict[str, Any]:
        """The record of the cluster's settings; empty where there is none, or where a full disk cut it short."""
        try:
            return dict(json.loads(self._facts.read_text()))
        except (FileNotFoundError, ValueError):
            return {}


# --- Processes, found by what they run: numbers that were written down would be wrong after a crash -------------------


def running(proc: Path = PROC) -> Iterator[tuple[int, list[str]]]:
    """Each process that has not ended: its number, and the words of its command."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                # The first words of a zombie are empty.
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            except OSError:
                continue  # it ended meanwhile
            if words:
                yield int(entry.name), words


def of_command(first: str, last: Sequence[str], proc: Path = PROC) -> list[int]:
    """The processes whose command has this first word and these last ones."""
    return [pid for pid, words in running(proc) if words[0] == first and words[-len(last) :] == list(last)]


def beside(first: int, beginning: Sequence[str], proc: Path = PROC) -> list[int]:
    """The processes in the process namespace of `first` whose command begins with these words."""
    inside = namespace(first, proc)
    found = (pid for pid, words in running(proc) if words[: len(beginning)] == list(beginning))
    return [pid for pid in found if inside and namespace(pid, proc) == inside]


def namespace(pid: int, proc: Path = PROC) -> str:
    """The process namespace that a process is in; "" for one that has ended."""
    try:
        return os.readlink(proc / str(pid) / "ns" / "pid")
    except OSError:
        return ""
