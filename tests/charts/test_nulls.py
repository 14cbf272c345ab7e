"""A value that is null: it is as if nothing were given where that means something, else refused by its name.

Helm takes a key that is null out of the values, default and all. Releases of Helm differ in how they do that, so each
test runs with Helm 3 as well, where that is at hand. Every value in values.yaml is in one of three groups here, which
are made from the file: none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from carpool_injector import config_file
from carpool_injector.core import config
from tests.charts import helm, objects, pages

DEFAULTS = YAML(typ="safe", pure=True).load((helm.CHART / "values.yaml").read_text())
EVERY = [(), ("--set=mode=policy", "--kube-version=1.36.0")]
pytestmark = pytest.mark.usefixtures("each_helm")
in_both_modes = pytest.mark.parametrize("mode", EVERY, ids=["webhook", "policy"])


def nothing(paths: Iterable[pages.Path], *, but: Any = ()) -> list[str]:
    """Flags of Helm's that set all of these to null, but for those that are given in the values `but`."""
    return [f"--set={written(path)}=null" for path in paths if not _given(but, path)]


def written(path: pages.Path) -> str:
    return ".".join(key.replace(".", r"\.") for key in path)


def _given(values: Any, path: pages.Path) -> bool:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def refusal(*flags: str) -> str:
    with pytest.raises(helm.Failed) as refused:
        helm.template(*flags)
    return str(refused.value)


def named(said: str) -> set[str]:
    """The values that a refusal says are null."""
    return set(re.findall(r"(?m)^- (\S+)$", said))


def configuration(things: list[objects.Object], folder: Path) -> config.Config:
    """The injector's configuration, as it reads it. Raises what it does."""
    (found,) = (each["data"] for each in objects.of_kind(things, "ConfigMap") if "config.yaml" in each["data"])
    file = folder / "config.yaml"
    file.write_text(found["config.yaml"])
    return config_file.load(file)


def as_read(things: list[objects.Object], folder: Path) -> list[objects.Object]:
    """The objects, but with the injector's configuration as it reads it in place of the text and its digest."""
    for thing in things:
        if thing["kind"] == "ConfigMap" and "config.yaml" in thing["data"]:
            thing["data"] = {"config.yaml": configuration(things, folder)}
        elif thing["kind"] == "Deployment":
            del thing["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    return things


def test_each_value_is_in_one_group() -> None:
    groups = [pages.empty(), pages.removable(), pages.needed()]
    assert sorted(path for group in groups for path in group) == sorted(pages.paths(DEFAULTS))


@in_both_modes
def test_a_value_that_is_needed_is_refused_by_its_name_if_it_is_null(mode: tuple[str, ...]) -> None:
    leaves = [path for path in pages.needed() if not isinstance(pages.at(DEFAULTS, path), dict)]
    mode_given = [path for path in leaves if not (mode and path == ("mode",))]
    said = refusal(*mode, *nothing(mode_given))
    assert named(said) == {".".join(path) for path in mode_given}
    assert "these values are null" in said
    assert "leave each out for its default" in said


@in_both_modes
def test_parts_that_are_left_empty_are_refused_by_their_names_and_not_by_all_that_they_hold(
    mode: tuple[str, ...],
) -> None:
    tables = [path for path in pages.needed() if isinstance(pages.at(DEFAULTS, path), dict)]
    outer = [path for path in tables if len(path) == 1]
    inner = [path for path in tables if len(path) == 2]
    assert len(outer) + len(inner) < len(tables)
    assert named(refusal(*mode, *nothing(outer))) == {".".join(path) for path in outer}
    assert named(refusal(*mode, *nothing(inner))) == {".".join(path) for path in inner}


@in_both_modes
@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_null_for_a_value_that_is_empty_by_default_changes_nothing(
    name: str, mode: tuple[str, ...], tmp_path: Path
) -> None:
    file = objects.SCENARIOS[name]
    given = YAML(typ="safe", pure=True).load(file.read_text()) if file else {}
    if mode and name == "everything":
        mode = ()  # its values are for the webhook
    now = objects.rendered(*mode, *nothing(pages.empty(), but=given), values=file)
    assert as_read(now, tmp_path) == as_read(objects.rendered(*mode, values=file), tmp_path)


def test_null_takes_out_what_kubernetes_or_the_injector_may_go_without(tmp_path: Path) -> None:
    outermost = [path for path in pages.removable() if not any(path[:-1] == each for each in pages.removable())]
    things = objects.rendered(*nothing(outermost), "--set=dashboard.enabled=true")
    assert configuration(things, tmp_path).port == DEFAULTS["config"]["port"]
    spec = objects.one(things, "Deployment")["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert not spec["containers"][0]["resources"]


@pytest.mark.parametrize("path", pages.removable(), ids=written)
def test_null_for_one_of_these_leaves_the_rest(path: pages.Path, tmp_path: Path) -> None:
    things = objects.rendered(*nothing([path]), "--set=dashboard.enabled=true")
    assert configuration(things, tmp_path).image == DEFAULTS["config"]["image"]


def test_the_list_of_needed_values_is_made_from_the_values() -> None:
    assert pages.NEEDED.read_text() == pages.needed_template(), "run: python -m tests.charts"
