"""An embedding model's server that costs next to nothing, in v1 and as OpenAI has it, so that the sidecar is the limit.

It answers each text with a row that has its mark (see `traffic`), and in OpenAI's format counts them and their tokens.
"""

from __future__ import annotations

from benchmarks import stub_server
from benchmarks.lists import traffic
from benchmarks.v2 import stub

MODULE = "benchmarks.lists.stub"
_OPENAI = b'{"object":"list","data":[%b],"model":"embedder","usage":{"prompt_tokens":%d,"total_tokens":%d}}'


def answer(marks: list[bytes], is_openai: bool) -> bytes:
    """The body of the answer to texts with these marks."""
    if not is_openai:
        return b'{"predictions":[%b]}' % b",".join([traffic.row(mark, 0) for mark in marks])
    tokens = traffic.TOKENS * len(marks)
    return _OPENAI % (b",".join([traffic.row(mark, place) for place, mark in enumerate(marks)]), tokens, tokens)


class Connection(stub_server.Connection):
    """One connection from the sidecar. A request without a body is a probe."""

    def __init__(self) -> None:
        super().__init__()
        self._url = b""
        self._marks: stub.Marks | None = None

    def on_message_begin(self) -> None:
        self._url, self._marks = b"", None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, piece: bytes) -> None:
        if self._marks is None:
            self._marks = stub.Marks(is_v1=True)
        self._marks.feed(piece)

    def on_message_complete(self) -> None:
        body = b"{}"
        if self._marks is not None:
            body = answer(self._marks.found, self._url.endswith(b"/embeddings"))
        self._transport.write(stub.Answer(body).message())


if __name__ == "__main__":
    stub_server.main(Connection, "An embedding model's server that answers at once.")
