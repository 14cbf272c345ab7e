"""What Kustomizations lay over whole objects, and whether that undoes an injection.

Where a patch may set the same fields of a container as an injection, the object below is left alone: what they become
together is known only once they are rendered. Where a selector is not understood, or Kustomizations set the labels that
it names, it selects everything. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from carpool_injector.core import model, refusals
from carpool_injector.core.refusals import Reason
from carpool_injector.objects import parts, patches, workloads

# What a kustomization.yaml lays over what it names; its kind may be left out.
_LAID_OVER = ("patches", "patchesStrategicMerge", "patchesJson6902", "replacements")
_BASES = ("resources", "bases", "components")
_ALL = "$patch"
# Without which the sidecar is not there, or not whole.
_WHOLE = ("initContainers", "volumes", "metadata", "annotations")


class Affixes(NamedTuple):
    """What Kustomizations put in front of names and behind them."""

    prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()

    def around(self, name: Any) -> Iterator[str]:
        """A name with one of each, or none."""
        return (f"{prefix}{name}{suffix}" for prefix in ("", *self.prefixes) for suffix in ("", *self.suffixes))


class Operation(NamedTuple):
    """An operation of a JSON patch, or a field that a replacement sets: place by place from the whole object on."""

    path: tuple[str, ...]
    value: Any = None
    inserts: bool = False


class Patch(NamedTuple):
    """What is laid over objects: parts of one, or operations.

    `target` selects these objects, as a Kustomization has it; None: the one of the patch's own kind and name. `reached`
    are the ids of those that its Kustomization has at all, None for any; `given` the labels and annotations that any of
    them may set.
    """

    sets: model.Object | tuple[Operation, ...]
    target: model.Object | None = None
    reached: Set[int] | None = None
    affixes: Affixes = Affixes()
    given: Set[str] = frozenset()

    def may_reach(self, thing: model.Object) -> bool:
        """Whether it may be laid over this object, which may have another name by then."""
        group, kind, name = patches.address(thing)
        if self.target is None:
            own = patches.address(self.sets) if isinstance(self.sets, dict) else ("", "", "")
            return own[:2] == (group, kind) and _may_become(name, own[2], self.affixes)
        if self.reached is not None and id(thing) not in self.reached:
            return False
        wanted = {key: self.target.get(key) for key in ("group", "kind", "name")}
        is_of_kind = _matches(wanted["group"], [group]) and _matches(wanted["kind"], [kind])
        is_named = _may_become(name, wanted["name"], self.affixes) or _matches(
            wanted["name"], self.affixes.around(name)
        )
        metadata = parts.part(thing, "metadata")
        return (
            is_of_kind
            and is_named
            and all(
                _may_select(self.target.get(selector), parts.part(metadata, held), self.given)
                for selector, held in (("labelSelector", "labels"), ("annotationSelector", "annotations"))
            )
        )


Cell = tuple[Any, str, Any]
"""A container's name, a field of it, and of `env` the name of a variable, else None."""


def undoing(before: model.Object, after: model.Object, laid: Sequence[Patch]) -> refusals.Refusal | None:
    """Why an injection cannot stay: a patch that may be laid over this object sets what it changed in a container."""
    own = _by_name(before)
    old, new = _cells(own), _cells(_by_name(after))
    changed = {cell for cell in old | new if old.get(cell) != new.get(cell)}
    for patch in laid:
        for cell in _set_by(patch, before, after) if patch.may_reach(before) else ():
            name, key, _ = cell
            if (key == _ALL or cell in changed) if name in own else key in (_WHOLE if name else (_ALL,)):
                return Reason.PATCHED(container=name, field="all" if key == _ALL else key)
    return None


def _may_become(name: Any, wanted: Any, affixes: Affixes) -> bool:
    """Whether Kustomizations, one over the other, may make one name of the other."""
    if name == wanted or not isinstance(wanted, str):
        return bool(name == wanted)
    return any(
        _may_become(name, wanted[len(each) :], affixes) for each in affixes.prefixes if wanted.startswith(each)
    ) or any(_may_become(name, wanted[: -len(each)], affixes) for each in affixes.suffixes if wanted.endswith(each))


def _matches(wanted: Any, found: Iterable[str]) -> bool:
    """Whether a target's regular expression, which has to match as a whole, matches one of these."""
    if not wanted:
        return True
    try:
        return any(re.fullmatch(str(wanted), each) for each in found)
    except re.error:
        return True


_WISH = re.compile(
    r"(?P<absent>!)?\s*(?P<key>[\w./-]+)(?:\s*(?P<equal>==?|!=)\s*(?P<value>[\w.-]*)"
    r"|\s+(?P<without>not)?in\s*\((?P<values>[^()]*)\))?",
    re.ASCII,
)
_BETWEEN = re.compile(r",(?![^(]*\))")


def _may_select(selector: Any, held: model.Object, given: Set[str]) -> bool:
    """Whether a selector as Kubernetes writes them (`app=web,tier in (a, b)`) may select what has these labels."""
    wishes = _BETWEEN.split(selector) if isinstance(selector, str) and selector.strip() else []
    found = [_WISH.fullmatch(each.strip()) for each in wishes]
    return all(each is None or each["key"] in given or _meets(each, held.get(each["key"])) for each in found)


def _meets(wish: re.Match[str], value: Any) -> bool:
    if wish["equal"] is None and wish["values"] is None:
        return (value is None) is (wish["absent"] is not None)
    wanted = [wish["value"]] if wish["equal"] else [each.strip() for each in wish["values"].split(",")]
    return (value in wanted) is not (wish["equal"] == "!=" or wish["without"] is not None)


def _by_name(thing: model.Object) -> dict[Any, model.Object]:
    spec = parts.part(workloads.written_template(thing), "spec")
    return {each.get("name"): each for group in patches.GROUPS for each in parts.parts(spec, group)}


def _cells(containers: Mapping[Any, model.Object]) -> dict[Cell, Any]:
    """What containers say."""
    found: dict[Cell, Any] = {}
    for name, held in containers.items():
        found |= {(name, key, None): value for key, value in held.items() if key != "env"}
        found |= {(name, "env", each.get("name")): each for each in parts.parts(held, "env")}
    return found


def _set_by(patch: Patch, before: model.Object, after: model.Object) -> Iterable[Cell]:
    """What a patch sets of containers. With the key `$patch` it sets all of them."""
    if isinstance(patch.sets, dict):
        kind = {"apiVersion": before.get("apiVersion"), "kind": before.get("kind")}
        return _cells(_by_name({**patch.sets, **kind}))
    return (cell for operation in patch.sets for cell in _set_by_operation(operation, before, after))


def _set_by_operation(operation: Operation, before: model.Object, after: model.Object) -> Iterator[Cell]:
    template = workloads.template_path(after)
    if template is None:
        return
    path, rest = operation.path, operation.path[len(template) :]
    if path[: len(template)] != template[: len(path)]:
        return
    if rest in ((), ("spec",), ("spec", "containers")):
        yield from ((name, _ALL, None) for name in _by_name(before))
    elif rest[-1] in _WHOLE and len(rest) == 2 - (rest[-1] == "metadata"):
        yield model.CONTAINER, rest[-1], None
    elif rest[0] == "spec" and rest[1] in patches.GROUPS and not (operation.inserts and len(rest) == 3):
        for held in _items(parts.parts(workloads.written_template(after), "spec", rest[1]), rest[2]):
            key = rest[3] if len(rest) > 3 else _ALL
            variables = _variables(operation, held, rest[4:]) if key == "env" else ({},)
            yield from ((held.get("name"), key, each.get("name")) for each in variables)


def _variables(operation: Operation, container: model.Object, rest: tuple[str, ...]) -> list[model.Object]:
    held = parts.parts(container, "env")
    if not rest:
        return held
    found = [] if operation.inserts and len(rest) == 1 else list(_items(held, rest[0]))
    return [*found, operation.value] if isinstance(operation.value, dict) else found


def _items(held: Sequence[model.Object], place: str) -> Iterator[model.Object]:
    """The items of a list at a place: a number, `[name=app]`, or `*` for all."""
    key, _, value = place.strip("[]").partition("=")
    for at, each in enumerate(held):
        if place == "*" or place == str(at) or (place.startswith("[") and each.get(key) == value):
            yield each


def is_kustomization(thing: Any) -> bool:
    """Whether it is a Kustomization or a Component of one."""
    if not isinstance(thing, dict):
        return False
    is_kindless = "kind" not in thing and not thing.keys().isdisjoint(_BASES)
    return workloads.group_kind(thing)[0] == "kustomize.config.k8s.io" or is_kindless


def laid_over(thing: Any) -> list[Any]:
    """What a Kustomization lays over the objects that it names, as it says that; [] for anything else."""
    return _listed(thing, _LAID_OVER) if is_kustomization(thing) else []


def _listed(thing: model.Object, keys: Sequence[str]) -> list[Any]:
    return [each for key in keys if isinstance(thing.get(key), list) for each in thing[key]]


class Source(NamedTuple):
    """A file: its path, "" for what was piped in, and what its documents say."""

    path: str
    contents: Sequence[Any]


Resolve = Callable[[str, str], str]
"""The whole path of what a file names by a path from its own folder, or of the file itself for ""."""
Contents = Callable[[str], Sequence[Any]]
_NAMED = "a Kustomization in these files names it among its patches"


def read(sources: Sequence[Source], resolve: Resolve, in_text: Contents) -> tuple[tuple[Patch, ...], dict[int, str]]:
    """What is laid over the objects of these files: the patches among them, and what Kustomizations say.

    With it, by the id of each object, what says that it is a patch; "" for whole ones. `in_text` reads a text.
    """
    held = {resolve(source.path, ""): source.contents for source in sources}
    things = [(path, thing) for path, contents in sources for each in contents for thing in workloads.objects(each)]
    every = [thing for _, thing in things]
    ids: dict[str, set[int]] = {}
    for path, contents in sources:
        found = {id(thing) for each in contents for thing in workloads.objects(each)}
        ids.setdefault(resolve(path, ""), set()).update(found)
    kustomizations = [(path, thing) for path, thing in things if is_kustomization(thing)]
    named = {resolve(path, each) for path, thing in kustomizations for each in _files(thing)}
    in_named = {each for place in named for each in ids.get(place, ())}
    signs = {
        id(thing): patches.sign(thing) or patches.sign_beside(thing, every) or _NAMED * (id(thing) in in_named)
        for thing in every
    }
    folders: dict[str, set[str]] = {}
    for path, thing in kustomizations:
        bases = (each for each in _listed(thing, _BASES) if isinstance(each, str))
        folders.setdefault(resolve(path, "."), set()).update(resolve(path, each) for each in bases)
    reached = {folder: _reached(folder, folders) for folder in folders}
    laid = [Patch(thing) for thing in every if signs[id(thing)]]
    for path, thing in kustomizations:
        own = resolve(path, ".")
        # The patches of a Component are laid over what those have that name it, too.
        over = [found for found in reached.values() if thing.get("kind") == "Component" and own in found]
        objects = {each for place in reached[own].union(*over) for each in ids.get(place, ())} if path else None
        at_hand = {each: held.get(resolve(path, each), ()) for each in _files(thing)}
        laid += _of_kustomization(thing, at_hand, in_text, objects)
    affixes = Affixes(*(_texts(key, [thing for _, thing in kustomizations]) for key in ("namePrefix", "nameSuffix")))
    given = frozenset(_labels([thing for _, thing in kustomizations]))
    return tuple(each._replace(affixes=affixes, given=given) for each in laid), signs


def _labels(kustomizations: Iterable[model.Object]) -> Iterator[str]:
    """The labels and annotations that Kustomizations may set on objects."""
    for thing in kustomizations:
        pairs = (parts.part(each, "pairs") for each in parts.parts(thing, "labels"))
        for held in (parts.part(thing, "commonLabels"), parts.part(thing, "commonAnnotations"), *pairs):
            yield from map(str, held)


def _texts(key: str, kustomizations: Sequence[model.Object]) -> tuple[str, ...]:
    found = (each.get(key) for each in kustomizations)
    return tuple(dict.fromkeys(each for each in found if each and isinstance(each, str)))


def _reached(folder: str, folders: Mapping[str, Set[str]]) -> set[str]:
    """The files and folders that a Kustomization names, and so on through theirs."""
    found: set[str] = set()
    todo = [folder]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += folders.get(each, ())
    return found


def _files(thing: model.Object) -> Iterator[str]:
    """The files of a Kustomization's patches, by their paths from its own."""
    for each in laid_over(thing):
        path = each.get("path") if isinstance(each, dict) else each
        if isinstance(path, str) and "\n" not in path:
            yield path


def _of_kustomization(
    thing: model.Object, contents: Mapping[str, Sequence[Any]], in_text: Contents, reached: Set[int] | None
) -> Iterator[Patch]:
    """The patches and replacements of a Kustomization; those of files that are not at hand are left out."""
    for each in laid_over(thing):
        entry = each if isinstance(each, dict) else {"path" if "\n" not in str(each) else "patch": each}
        text, path = entry.get("patch"), entry.get("path")
        in_file = contents.get(path, ()) if isinstance(path, str) else ()
        held = [*(in_text(text) if isinstance(text, str) else ()), *in_file]
        target = entry.get("target") if isinstance(entry.get("target"), dict) else None
        for content in (*held, entry):
            if isinstance(content, dict) and workloads.group_kind(content) != ("", ""):
                yield Patch(content, target, reached)
        operations = tuple(_operations(held))
        if operations:
            yield Patch(operations, target or {}, reached)
        yield from _replacements([entry, *held], reached)


def _each(held: Sequence[Any]) -> Iterator[model.Object]:
    """The objects among some values, and in lists among them."""
    listed = (each for content in held for each in (content if isinstance(content, list) else [content]))
    return (each for each in listed if isinstance(each, dict))


def _operations(held: Sequence[Any]) -> Iterator[Operation]:
    for each in _each(held):
        for key in ("path", "from") if each.get("op") == "move" else ("path",):
            path = each.get(key)
            if "op" in each and isinstance(path, str):
                names = (name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:])
                inserts = key == "path" and each["op"] in ("add", "copy", "move")
                yield Operation(tuple(names), each.get("value"), inserts)


_FIELD = re.compile(r"\[[^\]]*\]|(?:\\.|[^.])+")


def _replacements(held: Sequence[Any], reached: Set[int] | None) -> Iterator[Patch]:
    for target in (target for entry in _each(held) for target in parts.parts(entry, "targets")):
        paths = [each for each in _listed(target, ("fieldPaths",)) if isinstance(each, str)]
        sets = (Operation(tuple(name.replace("\\.", ".") for name in _FIELD.findall(path))) for path in paths)
        yield Patch(tuple(sets), parts.part(target, "select"), reached)
