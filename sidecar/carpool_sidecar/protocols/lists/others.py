"""How much text a request has beside its rows, found before memory is spent on its members.

That text is compared byte for byte and kept, and an object's members are found all at once: 64 MB of them would take
gigabytes, and the event loop for as long as it takes to look at each.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols.lists import places

_OPENING = ord("{")


class Others:
    """Measures what objects have beside the values at these places, which may be of any size."""

    def __init__(self, found: Sequence[places.Place]) -> None:
        self._root = _Object([place.names for place in found if place.names])

    def size(self, text: bytes) -> int:
        """Bytes of an object beside the values; raises `errors.BadRequest` for what is no JSON object.

        Columns count as values, whatever they are.
        """
        try:
            return self._root.size(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.BadRequest(str(error)) from None


class _Object:
    """The members of an object that are values or have them. All others are skipped without memory for them."""

    def __init__(self, paths: Sequence[tuple[str, ...]]) -> None:
        names = list(dict.fromkeys(path[0] for path in paths))
        within = [[path[1:] for path in paths if path[0] == name and len(path) > 1] for name in names]
        self._members = [_Object(rest) if rest else None for rest in within]
        fields = [(f"member{number}", msgspec.Raw, msgspec.Raw()) for number in range(len(names))]
        rename = {f"member{number}": name for number, name in enumerate(names)}
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Members", fields, rename=rename))

    def size(self, text: bytes | memoryview) -> int:
        left = memoryview(text).nbytes
        for member, value in zip(self._members, msgspec.structs.astuple(self._decoder.decode(text)), strict=True):
            view = memoryview(value)
            left -= view.nbytes
            if member is not None and view.nbytes and view[0] == _OPENING:
                left += member.size(view)
        return left
