"""Who gets which predictions of a batch that came back."""

from __future__ import annotations

from carpool.scheduling.messages import Answer, Batch, Piece, Request, Rows


def deal(batch: Batch, predictions: Rows, answers: list[Answer]) -> None:
    """Give every member that still waits its share, and close those that have all of theirs now: their `answers`.

    There is one prediction for each of the batch's instances. A request that was cut is answered with its last part.
    Written out, as every request comes through here.
    """
    batch_id = batch.id
    end = 0
    for request, start, stop in batch.parts:
        rows = stop - start
        begin, end = end, end + rows
        if not request.open:
            continue
        # Past the constructors of the named tuples, which cost more than all the rest.
        piece = tuple.__new__(Piece, (start, batch_id, predictions[begin:end]))
        pieces = [piece] if rows == request.rows else _join(request, piece, rows)
        if pieces is not None:
            request.open = False
            request.payload = None
            answers.append(tuple.__new__(Answer, (request, pieces)))


def _join(request: Request, piece: Piece, rows: int) -> list[Piece] | None:
    """Keep a piece of a request that was cut; all of them in order, once none is missing."""
    request.pieces.append(piece)
    request.rows_answered += rows
    if request.rows_answered < request.rows:
        return None
    # Parts of one request may come back in any order.
    return sorted(request.pieces, key=lambda piece: piece.start)
