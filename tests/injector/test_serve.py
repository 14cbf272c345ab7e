"""The whole service against an API server in memory: from the first handshake to the last answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from carpool_injector import config_file
from carpool_injector.api import kube
from carpool_injector.certificates import pki
from carpool_injector.core import refusals
from carpool_injector.webhook import options, service
from tests.injector import fake_api, pods, reviews

HOST = "carpool-injector.carpool-system.svc"
FREE_PORTS: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "metrics_port": 0}


@dataclass
class Running:
    """A service that runs, its API server, and the events that end it."""

    subject: service.Service
    api: fake_api.FakeApi
    session: aiohttp.ClientSession
    stop: asyncio.Event
    hurry: asyncio.Event

    async def probe(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.subject.ports[1]}{path}") as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        return (await self.probe("/readyz"))[0] == 200

    async def until_ready(self) -> None:
        await reviews.until(self.is_ready, 0.1)

    async def post(self, path: str, body: Any) -> Any:
        """As an API server calls: it trusts the live caBundle, and wants the Service's name."""
        bundle = base64.b64decode(self.api.ca_bundle()).decode()
        tls = ssl.create_default_context(cadata=bundle)
        url = f"https://127.0.0.1:{self.subject.ports[0]}{path}"
        async with self.session.post(url, json=body, ssl=tls, server_hostname=HOST) as answer:
            assert answer.status == 200, await answer.text()
            return reviews.response(await answer.read())


@contextlib.asynccontextmanager
async def running(directory: Path, api: fake_api.FakeApi | None = None, **chosen: Any) -> AsyncIterator[Running]:
    """A service on free ports; at the end it must come down by itself within its time."""
    api = api or fake_api.FakeApi()
    wanted = options.Options(**{**FREE_PORTS, **chosen})
    async with api.serving(directory) as kubeconfig, aiohttp.ClientSession() as session:
        cluster = await kube.Kube.connect(str(kubeconfig))
        subject = service.Service(wanted, config_file.parse(None), service.tls_context(wanted), cluster)
        stop, hurry = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(subject.run(stop, hurry))
        try:
            await reviews.until(lambda: bool(subject.ports) or task.done())
            yield Running(subject, api, session, stop, hurry)
        finally:
            stop.set()
            hurry.set()
            await task
            await cluster.close()


@pytest.mark.looptime
async def test_a_fresh_install_becomes_ready_and_injects_for_who_trusts_the_published_bundle(tmp_path: Path) -> None:
    async with running(tmp_path) as on:
        await on.until_ready()
        pod = pods.kserve(pods.sklearn())
        found = await on.post("/mutate?timeout=10s", reviews.asking(pod))
        stored = reviews.patched(pod, found)
        assert "carpool" in [each["name"] for each in stored["spec"]["initContainers"]]
        assert (await on.probe("/livez"))[0] == 200
        text = (await on.probe("/metrics"))[1]
        assert 'carpool_injector_injections_total{mode="native",takeover="port-swap"} 1.0' in text
        assert "carpool_injector_namespaces_synced 1.0" in text


@pytest.mark.looptime
async def test_readiness_says_what_is_missing_while_the_api_server_is_of_no_help(tmp_path: Path) -> None:
    class Silent(fake_api.FakeApi):
        async def _get(self, request: Any) -> Any:
            return fake_api._failure(503)

        _version = _namespaces = _get

    async with running(tmp_path, Silent()) as on:
        status, text = await on.probe("/readyz")
        assert status == 503
        assert "not ready: the certificate: there is no certificate yet" in text
        assert "not ready: the namespaces are not known yet" in text
        assert "not ready: the cluster's version is not known yet" in text
        assert await on.probe("/livez") == (200, "ok\n")


@pytest.mark.looptime
async def test_what_a_namespace_asks_for_counts_as_soon_as_it_is_labelled(tmp_path: Path) -> None:
    async with running(tmp_path) as on:
        await on.until_ready()
        pod = pods.kserve(pods.sklearn())
        del pod["metadata"]["labels"]["carpool.dev/inject"]
        assert not reviews.patch(await on.post("/mutate", reviews.asking(pod)))
        on.api.add_namespace("models", **{"carpool.dev/inject": "enabled"})

        async def is_injected() -> bool:
            return bool(reviews.patch(await on.post("/mutate", reviews.asking(pod))))

        await reviews.until(is_injected, 0.01)
        on.api.namespaces["new"] = {"metadata": {"name": "new", "labels": {"carpool.dev/inject": "true"}}}
        assert reviews.patch(await on.post("/mutate", reviews.asking(pod, namespace="new")))


@pytest.mark.looptime
async def test_the_owner_of_a_refused_pod_is_told_once_and_of_a_dry_run_nothing(tmp_path: Path) -> None:
    pod = pods.plain(pods.custom())
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "scorer-6c9d8b5f7", "uid": "77", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    async with running(tmp_path) as on:
        await on.until_ready()
        await on.post("/mutate", reviews.asking(pod, dryRun=True))
        for _ in range(3):
            found = await on.post("/mutate", reviews.asking(pod))
            assert found["allowed"] is True
            assert found["warnings"]
        await on.api.event_told.wait()
        await asyncio.sleep(5)
        assert [event["involvedObject"]["name"] for event in on.api.events] == ["scorer-6c9d8b5f7"]
        assert on.api.events[0]["type"] == "Warning"
        text = (await on.probe("/metrics"))[1]
        assert 'carpool_injector_events_total{result="repeated"} 2.0' in text
        assert 'result="dry-run"' in text


@pytest.mark.looptime
async def test_events_can_be_switched_off(tmp_path: Path) -> None:
    pod = pods.plain(pods.custom())
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "1", "controller": True}
    ]
    async with running(tmp_path, events=False) as on:
        await on.until_ready()
        assert (await on.post("/mutate", reviews.asking(pod)))["warnings"]
        await asyncio.sleep(5)
        assert on.api.events == []


@pytest.mark.looptime
async def test_who_applies_a_workload_with_a_bad_annotation_is_told(tmp_path: Path) -> None:
    pod = pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "many"})
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": template},
    }
    async with running(tmp_path) as on:
        await on.until_ready()
        found = await on.post("/validate", reviews.asking(deployment))
        assert found["allowed"] is False
        assert "carpool.dev/max-batch-size: got 'many'" in found["status"]["message"]


@pytest.mark.looptime
async def test_the_way_out_unready_at_once_then_a_quiet_period_then_gone(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with running(tmp_path, quiet_period=5.0) as on:
        await on.until_ready()
        on.stop.set()
        began = loop.time()
        await reviews.until(lambda: on.subject.metrics.registry.get_sample_value("carpool_injector_draining") == 1)
        assert loop.time() - began < 1
        assert await on.probe("/readyz") == (503, "not ready: shutting down\n")
        assert (await on.post("/mutate", reviews.asking(pods.kserve(pods.sklearn()))))["allowed"]
        await asyncio.sleep(6)
        with pytest.raises(aiohttp.ClientConnectorError):
            await on.post("/mutate", reviews.asking())


async def test_a_port_that_is_taken_is_an_os_error(tmp_path: Path) -> None:
    async with running(tmp_path) as on:
        wanted = options.Options(**{**FREE_PORTS, "port": on.subject.ports[0]})
        tls = service.tls_context(wanted)
        second = service.Service(wanted, config_file.parse(None), tls, on.subject._api)
        with pytest.raises(OSError, match=r"(?i)address already in use"):
            await second.run(asyncio.Event(), asyncio.Event())


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"port": 70000}, "port is 70000, but must be 0 to 65535"),
        ({"body_timeout": 0}, "body_timeout is 0, but must be above 0"),
        ({"quiet_period": -1}, "quiet_period is -1, but must be 0 or more"),
        ({"client_names": ("apiserver",)}, "client_names need client_ca"),
        ({"port": 9443, "metrics_port": 9443}, "metrics_port and port are both 9443"),
        ({"quiet_period": 30}, "grace_period (20 s) ends before quiet_period (30 s)"),
        ({"max_held_bytes": 10}, "max_held_bytes is 10, but must be at least max_body_bytes (7340032)"),
    ],
)
def test_options_that_cannot_work_are_named(chosen: dict[str, Any], problem: str) -> None:
    with pytest.raises(refusals.BadConfig) as told:
        service.serve(options.Options(**chosen))
    assert problem in str(told.value)


def test_every_option_has_a_text() -> None:
    fields = options.Options.model_fields.values()
    assert all((field.description or "").endswith(".") for field in fields)
    assert options.Options().problems() == []


def test_a_client_ca_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    for path in (tmp_path / "ca.crt", tmp_path / "missing"):
        with pytest.raises(refusals.BadConfig, match="must be a file with certificates"):
            service.serve(options.Options(client_ca=str(path)))


@pytest.mark.looptime
async def test_with_a_client_ca_reviews_need_a_certificate_and_probes_do_not(tmp_path: Path) -> None:
    root = pki.issue_authority(datetime.datetime.now(datetime.UTC))
    (tmp_path / "client-ca.crt").write_bytes(root.certificate)
    async with running(tmp_path, client_ca=str(tmp_path / "client-ca.crt")) as on:
        await on.until_ready()
        with pytest.raises(AssertionError, match="the client showed no certificate"):
            await on.post("/mutate", reviews.asking())
        assert (await on.probe("/metrics"))[0] == 200


@pytest.mark.looptime
async def test_certificates_of_somebody_else_are_served_from_their_directory(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    root = pki.issue_authority(now)
    leaf = pki.issue_leaf(root, [HOST], now)
    for name, content in (("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", root.certificate)):
        (tmp_path / name).write_bytes(content)
    api = fake_api.FakeApi()
    for path in [path for path in api.objects if "webhookconfigurations" in path]:
        bundle = base64.b64encode(root.certificate).decode()
        api.put(path, {"webhooks": [{"name": "carpool.dev", "clientConfig": {"caBundle": bundle}}]})
    async with running(tmp_path, api, certificates="files", cert_dir=str(tmp_path)) as on:
        await on.until_ready()
        assert (await on.post("/mutate", reviews.asking()))["allowed"]
        assert not any("secrets" in path for path in api.objects)


async def until_logged(process: asyncio.subprocess.Process, message: str) -> None:
    """Reads the process's log until it has told that."""
    assert process.stderr is not None
    async for line in process.stderr:
        if json.loads(line)["message"] == message:
            return
    pytest.fail(f"the process ended without saying {message!r}")


@contextlib.asynccontextmanager
async def program(directory: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program in a process of its own, ready to be called."""
    always = ("--host=127.0.0.1", "--port=0", "--metrics-port=", "--log-format=json")
    async with fake_api.FakeApi().serving(directory) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "carpool_injector", "serve", *always, *flags, f"--kubeconfig={kubeconfig}",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await until_logged(process, "serving")
        yield process


async def test_signals_that_come_until_the_very_end_do_not_change_the_exit_code(tmp_path: Path) -> None:
    async with program(tmp_path, "--quiet-period=0") as process:
        assert process.stderr is not None
        reading = asyncio.create_task(process.stderr.read())
        descriptor = os.pidfd_open(process.pid)  # of this process, also when the number is somebody else's
        while process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.pidfd_send_signal(descriptor, number)
            await asyncio.sleep(0.001)
        os.close(descriptor)
        assert process.returncode == 0
        assert b"received SIGTERM" in await reading


async def test_the_program_ends_with_0_on_sigterm_and_with_1_where_there_is_no_cluster(tmp_path: Path) -> None:
    flags = ("--host=127.0.0.1", "--port=0", "--metrics-port=", "--quiet-period=0", "--log-format=json")
    command = [sys.executable, "-m", "carpool_injector", "serve", *flags]
    async with fake_api.FakeApi().serving(tmp_path) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            *command, f"--kubeconfig={kubeconfig}", stderr=asyncio.subprocess.PIPE
        )
        await until_logged(process, "serving")
        process.terminate()
        assert process.stderr is not None
        await process.stderr.read()
        assert await process.wait() == 0
    process = await asyncio.create_subprocess_exec(
        *command, f"--kubeconfig={tmp_path / 'none'}", stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert process.returncode == 1
    assert "check --kubeconfig" in json.loads(told.splitlines()[-1])["message"]


def missed_pod() -> dict[str, Any]:
    pod = pods.plain(pods.sklearn())
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "scorer-6c9", "uid": "77", "controller": True}
    own = {"namespace": "models", "name": "scorer-1", "uid": "1", "creationTimestamp": "2026-11-27T00:00:00Z"}
    pod["metadata"] |= {**own, "ownerReferences": [owner]}
    return pod


@pytest.mark.parametrize("restart", [False, True])
async def test_a_pod_that_missed_the_sidecar_is_told_to_its_owner_and_evicted_if_that_is_asked_for(
    tmp_path: Path, restart: bool
) -> None:
    api = fake_api.FakeApi()
    api.pods.append(missed_pod())
    async with running(tmp_path, api, restart_missed_pods=restart) as on:
        await on.until_ready()
        assert on.subject._missed is not None
        await on.subject._missed.look()
        await asyncio.wait_for(api.event_told.wait(), 5)
        assert 'missed_pods{asked_by="pod"} 1.0' in (await on.probe("/metrics"))[1]
    assert api.evicted == ["scorer-1"] * restart
    (told,) = api.events
    assert (told["reason"], told["involvedObject"]["name"]) == ("CarpoolSidecarMissed", "scorer-6c9")
