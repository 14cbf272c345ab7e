"""Alerts as Prometheus raises them over hours: its own promtool plays series to the chart's rules."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.charts import objects, prometheus_server

DAY = 86_400
OWN = 'namespace="carpool-system",pod="carpool-injector-%s"'
EXPIRES = "CarpoolInjectorCertificateExpires"


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return prometheus_server.find("promtool")
    except prometheus_server.Unavailable as missing:
        pytest.skip(str(missing))


def raised(promtool: str, folder: Path, series: dict[str, str], alert: str, times: list[str]) -> list[list[str]]:
    """The summaries of an alert at each of these times; series are in promtool's notation, a value a minute."""
    things = objects.rendered("--set", "prometheusRule.enabled=true")
    rules = folder / "rules.json"
    rules.write_text(json.dumps(objects.one(things, "PrometheusRule")["spec"]))
    played = [{"series": name, "values": values} for name, values in series.items()]
    found = []
    for number, time in enumerate(times):
        test = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [{
            "interval": "1m", "input_series": played,
            "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": []}],
        }]}  # fmt: skip
        file = folder / f"test-{number}.json"
        file.write_text(json.dumps(test))
        done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or "got:" in said, said
        found.append([line.split('summary="')[1].split('"')[0] for line in said.splitlines() if 'summary="' in line])
    return found


def certificate(pod: str, values: str) -> dict[str, str]:
    return {f"carpool_injector_certificate_not_after_timestamp_seconds{{{OWN % pod}}}": values}


def ends_in(days: float, minutes: int) -> str:
    return f"{int(days * DAY)}x{minutes}"


def test_a_certificate_that_is_renewed_in_time_raises_nothing(promtool: str, tmp_path: Path) -> None:
    series = certificate("a", ends_in(10.1, 600)) | certificate("b", ends_in(30, 600))
    assert raised(promtool, tmp_path, series, EXPIRES, ["2h", "9h"]) == [[], []]


def test_one_that_is_not_is_told_once_for_all_pods_after_an_hour(promtool: str, tmp_path: Path) -> None:
    series = certificate("a", ends_in(6, 600)) | certificate("b", ends_in(6, 600))
    early, late = raised(promtool, tmp_path, series, EXPIRES, ["50m", "65m"])
    assert early == []
    assert late == ["The injector's certificate ends in 5d 22h 55m 0s."]


def test_a_restart_neither_ends_the_alert_nor_begins_it_anew(promtool: str, tmp_path: Path) -> None:
    new = f"_x120 0x2 {ends_in(6, 400)}"  # it has no certificate for a moment
    series = certificate("a", ends_in(6, 119)) | certificate("b", new)
    assert [len(each) for each in raised(promtool, tmp_path, series, EXPIRES, ["119m", "122m", "130m"])] == [1, 1, 1]


def test_a_pod_that_has_no_certificate_yet_is_no_reason(promtool: str, tmp_path: Path) -> None:
    series = certificate("a", ends_in(30, 300)) | certificate("b", "0x300")
    assert raised(promtool, tmp_path, series, EXPIRES, ["4h"]) == [[]]


def test_pods_that_missed_the_sidecar_are_told_once_and_not_for_each_replica(promtool: str, tmp_path: Path) -> None:
    series: dict[str, Any] = {
        f'carpool_injector_missed_pods{{{OWN % pod},asked_by="{by}"}}': f"{count}x60"
        for pod in "ab"
        for by, count in (("pod", 2), ("namespace", 1))
    }
    early, late = raised(promtool, tmp_path, series, "CarpoolInjectorMissedPods", ["10m", "20m"])
    assert early == []
    assert late == ["Pods that should have the sidecar were created without it: 3."]
