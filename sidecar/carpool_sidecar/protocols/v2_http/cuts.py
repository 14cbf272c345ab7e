"""One tensor's rows in a message of a caller or of the predictor: cut, and converted where another form is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from carpool_sidecar.protocols import steps, v2
from carpool_sidecar.protocols.v2_http import declarations, json_lists


class Column:
    """A tensor of so many `rows`: `data` is a JSON list with its brackets, or binary.

    What was found out of the data may be told: `ends` are where rows of BYTES in binary end, `texts` are the rows of
    data in JSON, if they are nested with their brackets.
    """

    # State: _converted, by start and stop, and what of _ends and _texts was not told, once it is needed.
    __slots__ = ("_converted", "_ends", "_is_nested", "_texts", "data", "is_binary", "rows", "what")

    def __init__(
        self,
        what: declarations.Tensor,
        data: v2.Data,
        rows: int,
        ends: Sequence[int] | None = None,
        texts: Sequence[bytes] | None = None,
        is_nested: bool = False,
    ) -> None:
        self.what = what
        self.data = data
        self.rows = rows
        self.is_binary = what.size is not None
        self._ends = ends
        self._converted: dict[tuple[int, int], v2.Data] = {}
        self._texts = texts
        self._is_nested = is_nested

    @property
    def texts(self) -> Sequence[bytes]:
        """The rows of data in JSON."""
        if self._texts is None:
            self._texts = steps.at_once(json_lists.rows(self.data, self.rows, self.what.width))
        return self._texts

    def convert(self, start: int, stop: int) -> None:
        """Have the rows ready in the form that they are not in; raises `errors.NotMergeable` if they have none."""
        if self.is_binary:
            self.flat(start, stop)
        else:
            self.binary(start, stop)

    def text(self, start: int, stop: int) -> bytes:
        """Rows as a JSON list, nested as they came, without the outermost brackets.

        Raises `errors.NotMergeable` if they are not in JSON already, nor have a form in it.
        """
        if self.is_binary:
            return self.flat(start, stop)
        texts = self._texts or self.texts
        if stop - start == 1:
            return texts[start]
        return b",".join(texts[start:stop]) if self.what.width or self._is_nested else b""

    def flat(self, start: int, stop: int) -> bytes:
        """The same as elements of a flat JSON list."""
        if not self.is_binary:
            text = self.text(start, stop)
            return b",".join(json_lists.leaves(b"[%b]" % text)) if self._is_nested else text
        found = self._converted.get((start, stop))
        if found is None:
            found = json_lists.to_json(self.what.name, self.what.datatype, self.binary(start, stop))
            self._converted[start, stop] = found
        return bytes(found)

    def binary(self, start: int, stop: int) -> v2.Data:
        """Rows in binary; raises `errors.NotMergeable` if they are not in binary already, nor have an equal there."""
        what, is_whole = self.what, stop - start == self.rows
        if self.is_binary:
            if is_whole:
                return self.data
            if what.datatype == v2.BYTES and self._ends is None:
                self._ends = steps.at_once(v2.row_ends(self.data, self.rows, what.width)) or ()
            return v2.cut(self.data, len(self.data) // self.rows, self._ends, start, stop)
        found = self._converted.get((start, stop))
        if found is None:
            text = self.data if is_whole else b"[%b]" % self.flat(start, stop)
            found = self._converted[start, stop] = steps.at_once(json_lists.to_binary(what.name, what.datatype, text))
        return found
