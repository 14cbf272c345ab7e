"""A quicker look at what most large bodies are: lists of lists of numbers.

`number_lists.c` has the same function, which looks at 64 bytes at once. It is built with the compiled modules, and
Python prefers it to this file. Without it msgspec's decoder, which takes any JSON, is the quickest.
"""

from __future__ import annotations


def find(
    text: bytes | memoryview, start: int, stop: int, depth: int, shift: int, room: int, nesting: int
) -> tuple[int, list[int], list[int], int] | None:
    """How many lists are open at the end, where rows begin and end in `text` from `start` to `stop`, and the nesting.

    These are places in the text plus `shift`. `depth` lists are open at `start`, 1 for the list of rows alone. What
    lies there begins where a value may, and ends where a comma may follow: it is JSON in that place, to the byte.

    The nesting is that of all text so far: it goes in as it came out of the call before, 0 in the first. Its lowest six
    bits are how many lists each number is in; the next ones tell of each list that is open, but for the innermost ones
    that numbers are in, the outermost first, whether it has a complete list in it. It is -1 if not all numbers are in
    so many lists, some list is empty, or there may be a whole number of 16 digits or more.

    None is for others to tell: what is no JSON, strings, objects, literals, white space but one space behind a comma,
    rows that are no lists, more than `room` rows, more than 64 lists within each other; and without C everything.
    """
    return None
