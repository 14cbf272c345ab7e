"""A pod under change: copied only where it is touched, so that the difference is found by looking at what is new."""

from __future__ import annotations

import copy
from typing import Any

from carpool_injector.core import model


class Draft:
    """Edits of a pod's JSON. The original is never changed; `pod` is the result.

    State: the copied spine (pod, metadata, spec and the lists below them) and the containers touched so far.
    """

    def __init__(self, pod: model.Object) -> None:
        self.pod: model.Object = dict(pod)
        for key in ("metadata", "spec"):
            if self.pod.get(key) is not None:
                self.pod[key] = dict(self.pod[key])
        self._touched: dict[str, model.Object] = {}

    def annotate(self, key: str, value: str) -> None:
        """Set an annotation."""
        metadata = self._part(self.pod, "metadata", {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), key: value}

    def unannotate(self, key: str) -> None:
        """Remove an annotation, if it is there; the last one takes the map with it."""
        metadata = self.pod.get("metadata") or {}
        rest = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != key}
        if rest:
            metadata["annotations"] = rest
        elif metadata.get("annotations"):
            del metadata["annotations"]

    def container(self, name: str) -> model.Object:
        """The regular container of that name, as a copy that may be changed; KeyError if there is none."""
        if name not in self._touched:
            at, found = self._find("containers", name)
            self.pod["spec"]["containers"] = list(self.pod["spec"]["containers"])
            self.pod["spec"]["containers"][at] = self._touched[name] = copy.deepcopy(found)
        return self._touched[name]

    def has(self, name: str) -> bool:
        """Whether there is a regular container of that name."""
        return any(container.get("name") == name for container in self._list("containers"))

    def sidecar(self) -> model.Object | None:
        """The sidecar container as it stands, in either list; not to be changed."""
        for group in ("initContainers", "containers"):
            for container in self._list(group):
                if container.get("name") == model.CONTAINER:
                    return dict(container)
        return None

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
        if len(rest) == len(items):
            return
        if rest:
            self.pod["spec"][group] = rest
        else:
            del self.pod["spec"][group]

    def _list(self, group: str) -> list[Any]:
        return list(self.pod["spec"].get(group) or ())

    def _find(self, group: str, name: str) -> tuple[int, model.Object]:
        for at, container in enumerate(self._list(group)):
            if container.get("name") == name:
                return at, container
        raise KeyError(name)

    @staticmethod
    def _part(parent: model.Object, key: str, empty: Any) -> Any:
        if parent.get(key) is None:
            parent[key] = empty
        return parent[key]
