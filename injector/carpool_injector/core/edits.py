"""A pod's JSON under change: a copy-on-write draft, edits of one container, and the difference as a JSON Patch.

Each edit can be applied twice without harm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from carpool_injector.core import command_lines, model

GROUPS = ("initContainers", "containers")
"""A pod's lists of containers."""


class Draft:
    """Edits of a pod's JSON. The original is never changed; `pod` is the result.

    State: the copied spine (pod, metadata, spec and the lists below them), and the containers touched so far.
    """

    def __init__(self, pod: model.Object) -> None:
        self.pod: model.Object = dict(pod)
        for key in ("metadata", "spec"):
            if self.pod.get(key) is not None:
                self.pod[key] = dict(self.pod[key])
        self._touched: dict[tuple[str, str], model.Object] = {}

    def annotate(self, key: str, value: str) -> None:
        """Set an annotation."""
        if self.pod.get("metadata") is None:
            self.pod["metadata"] = {}
        metadata = self.pod["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), key: value}

    def unannotate(self, key: str) -> None:
        """Remove an annotation, if it is there; the last one takes the map with it."""
        metadata = self.pod.get("metadata") or {}
        if annotations := metadata.get("annotations"):
            put_or_drop(metadata, "annotations", {name: value for name, value in annotations.items() if name != key})

    def container(self, name: str) -> model.Object:
        """The regular container of that name, as a copy that may be changed; KeyError if there is none."""
        return self._copied("containers", name)

    def any_container(self, name: str) -> model.Object:
        """Likewise of both lists, init containers first; KeyError if there is none."""
        is_initial = any(each.get("name") == name for each in self._list("initContainers"))
        return self._copied("initContainers" if is_initial else "containers", name)

    def replace(self, group: str, items: list[model.Object]) -> None:
        """Put other containers in the place of all in a list of the spec."""
        self.pod["spec"][group] = items
        self._touched = {}

    def has(self, name: str) -> bool:
        """Whether there is a regular container of that name."""
        return any(container.get("name") == name for container in self._list("containers"))

    def sidecar(self) -> model.Object | None:
        """The sidecar container as it stands, in either list; not to be changed."""
        held = (each for group in GROUPS for each in self._list(group))
        return next((dict(each) for each in held if each.get("name") == model.CONTAINER), None)

    def put(self, group: str, item: model.Object) -> None:
        """Put an item into a list of the spec: in place of the one of the same name, else at the end."""
        items = self._list(group)
        names = [other.get("name") for other in items]
        if item["name"] in names:
            items[names.index(item["name"])] = item
        else:
            items.append(item)
        self.pod["spec"][group] = items

    def remove(self, group: str, name: str) -> None:
        """Take an item out of a list of the spec, if it is there; the last one takes the list with it."""
        items = self._list(group)
        rest = [item for item in items if item.get("name") != name]
        if len(rest) < len(items):
            put_or_drop(self.pod["spec"], group, rest)

    def set_sysctl(self, name: str, value: str) -> None:
        """Give the pod a kernel parameter that it has not."""
        found = self.pod["spec"].get("securityContext") or {}
        sysctls = [*(found.get("sysctls") or ()), {"name": name, "value": value}]
        self.pod["spec"]["securityContext"] = {**found, "sysctls": sysctls}

    def remove_sysctl(self, name: str) -> None:
        """Take a kernel parameter out, if it is there; the last one takes the list with it."""
        found = dict(self.pod["spec"].get("securityContext") or {})
        rest = [each for each in found.pop("sysctls", None) or () if each.get("name") != name]
        found |= {"sysctls": rest} if rest else {}
        put_or_drop(self.pod["spec"], "securityContext", found)

    def _list(self, group: str) -> list[Any]:
        return list(self.pod["spec"].get(group) or ())

    def _copied(self, group: str, name: str) -> model.Object:
        if (group, name) not in self._touched:
            found = next((each for each in self._list(group) if each.get("name") == name), None)
            if found is None:
                raise KeyError(name)
            self._touched[group, name] = copy.deepcopy(found)
            self.put(group, self._touched[group, name])
        return self._touched[group, name]


def set_variable(container: model.Object, name: str, value: str) -> None:
    """Give every variable of that name this value; a new one if there is none."""
    found = [item for item in container.get("env") or () if item.get("name") == name]
    for item in found:
        item.pop("valueFrom", None)
        item["value"] = value
    if not found:
        container["env"] = [*(container.get("env") or ()), {"name": name, "value": value}]


def variable(container: model.Object, name: str) -> str | None:
    """The literal value of a variable; the last one counts, as in the kubelet."""
    values = [item.get("value") for item in container.get("env") or () if item.get("name") == name]
    return values[-1] if values else None


def remove_variable(container: model.Object, name: str) -> None:
    """Take a variable out; the last one takes the list with it."""
    rest = [item for item in container.get("env") or () if item.get("name") != name]
    put_or_drop(container, "env", rest)


def change_flag_port(container: model.Object, flag: str, old: int, new: int) -> None:
    """Make every value of the flag that ends in port `old` end in `new`, in the command and the arguments."""
    for group in ("command", "args"):
        words: list[str] = container.get(group) or []
        for at, before, value in list(command_lines.flag_values(words, flag)):
            if command_lines.port_in(value) == old:
                words[at] = before + command_lines.with_port(value, new)


def drop_words(container: model.Object, group: str, words: list[str]) -> None:
    """Take the first occurrence of each word out; the last one takes the list with it."""
    rest = list(container.get(group) or ())
    for word in words:
        if word in rest:
            rest.remove(word)
    put_or_drop(container, group, rest)


def without_flags(words: list[str], flags: dict[str, bool]) -> list[str]:
    """The words without some flags. `flags` tells of each whether its value is a word of its own."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = flags[word]
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept


def put_or_drop(container: model.Object, key: str, items: list[Any] | model.Object) -> None:
    """Set a list or mapping; an empty one goes."""
    if items:
        container[key] = items
    elif key in container:
        del container[key]


def json_patch(before: model.Object, after: model.Object) -> list[model.Object]:
    """Operations that turn one pod into the other, applied one after the other; [] if they are equal.

    Lists are compared place by place: an item taken out of the middle costs a replacement for each behind it.
    """
    return list(_difference("", before, after))


def _difference(path: str, before: Any, after: Any) -> Iterator[model.Object]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(path, before, after)
    elif before != after or type(before) is not type(after):  # 1 and true are equal in Python only
        yield {"op": "replace", "path": path, "value": after}


def _members(path: str, before: model.Object, after: model.Object) -> Iterator[model.Object]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": _below(path, key)}
    for key, value in after.items():
        if key in before:
            yield from _difference(_below(path, key), before[key], value)
        else:
            yield {"op": "add", "path": _below(path, key), "value": value}


def _items(path: str, before: list[Any], after: list[Any]) -> Iterator[model.Object]:
    for at, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from _difference(f"{path}/{at}", one, other)
    for at in range(len(before) - 1, len(after) - 1, -1):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for item in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": item}


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
