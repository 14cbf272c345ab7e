"""Python objects on their way to another process: a pickle, and beside it the memory of the arrays in it.

Arrays go by pickle's protocol 5: their bytes stay out of the pickle, are written to the socket from where they lie,
and are read into memory of their own size. Measured with a worker that returns the 32 numpy arrays of 1 MB that it is
given: 102 ms with everything in the pickle, 25 ms so, 48 ms with a fresh piece of shared memory for each batch, and
11 ms with one piece for all batches. The last would hand out arrays that the next batch overwrites; who copies them
out to be safe is back at about 20 ms. So it is the socket: no arrays that change by themselves, no names to clean up
after a kill -9, and no limit on the size of shared memory, which is 64 MB in a container by default.

Tensors of torch take the same way. They arrive on the CPU, without gradients: two processes share no GPU memory, and
a model knows where it wants its inputs. An exception travels with the text of its traceback, which becomes its cause,
and as a `RemoteError` if it cannot be pickled itself.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from carpool import errors as carpool_errors
from carpool.workers import errors

Buffer = bytes | bytearray | memoryview

_PLAIN = (bytes, str, int, float, bool, type(None))  # nothing about them is special
_SMALL = 8 * 1024  # bytes; below, copying is faster than one more piece to write and to read


class Payload(NamedTuple):
    """One object in transit: its pickle in pieces, and the memory of large arrays, which is part of none of them."""

    pieces: list[Buffer]
    buffers: list[Buffer]


def dump(value: object) -> Payload:
    """The object, to be sent before it changes. Raises what pickling it raises, mostly TypeError."""
    if type(value) in _PLAIN:
        return Payload([pickle.dumps(value, 5)], [])
    payload = Payload([], [])
    _Pickler(payload).dump(value)
    return payload


def load(payload: Payload, prepare_main: Callable[[], None] | None = None) -> Any:
    """A copy of the object. Raises what unpickling it raises. `prepare_main` is called before a look at `__main__`."""
    data = payload.pieces[0] if len(payload.pieces) == 1 else b"".join(payload.pieces)
    if prepare_main is None:
        return pickle.loads(data, buffers=payload.buffers)  # noqa: S301 # from a process of one's own
    unpickler = _Unpickler(io.BytesIO(data), buffers=payload.buffers)
    unpickler.prepare_main = prepare_main
    return unpickler.load()


class _Pickler(pickle.Pickler):
    def __init__(self, payload: Payload) -> None:
        # What it writes are pieces as they are: large `bytes` are not copied either.
        super().__init__(types.SimpleNamespace(write=payload.pieces.append), protocol=5, buffer_callback=self._keep)
        self._buffers = payload.buffers

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer belongs into the pickle."""
        memory = buffer.raw()
        if memory.nbytes < _SMALL:
            return True
        self._buffers.append(memory)
        return False

    def reducer_override(self, value: Any) -> Any:
        if issubclass(type(value), BaseException):  # `isinstance` would ask its `__class__`, which may do anything
            return _exception, _parts(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            return _reduce_tensor(torch, value)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    prepare_main: Callable[[], None]

    def find_class(self, module: str, name: str, /) -> Any:
        if module in ("__main__", "__mp_main__"):
            self.prepare_main()
        return super().find_class(module, name)


# --- exceptions -------------------------------------------------------------------------------------------------


def _parts(error: BaseException) -> tuple[bytes | None, str, str | None]:
    """Its pickle if it has one that can be read back, what it says, and where it was raised if it was.

    Nothing of what its class does in place of Python's own can make this raise.
    """
    words, trace = type(error).__qualname__, None
    with contextlib.suppress(BaseException):
        words = "".join(traceback.format_exception_only(error)).strip()  # also if its `__str__` raises
    with contextlib.suppress(BaseException):
        if carpool_errors.raw(error, "__traceback__") or carpool_errors.raw(error, "__cause__"):
            trace = "".join(traceback.format_exception(error))
    with contextlib.suppress(BaseException):
        data = pickle.dumps(error)
        # Many can be written and not read: their __init__ takes other arguments.
        if type(pickle.loads(data)) is type(error):  # noqa: S301
            return data, words, trace
    return None, words, trace


def _exception(data: bytes | None, words: str, trace: str | None) -> BaseException:
    error: BaseException = errors.RemoteError(words)
    with contextlib.suppress(BaseException):  # this process may lack its class
        if data is not None and issubclass(type(found := pickle.loads(data)), BaseException):  # noqa: S301
            error = found
    carpool_errors.put(error, "__cause__", None if trace is None else errors.RemoteTraceback(trace))
    return error


# --- torch ------------------------------------------------------------------------------------------------------


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    """As numpy arrays do it. torch's own way copies a tensor into the pickle, twice; rare kinds still take that."""
    plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not plain or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return NotImplemented
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    memory = tensor.reshape(-1).view(torch.uint8).numpy()  # bytes, since numpy lacks some of torch's types
    return _tensor, (tensor.dtype, tuple(tensor.shape), pickle.PickleBuffer(memory))


def _tensor(dtype: Any, shape: tuple[int, ...], memory: Buffer) -> Any:
    import torch

    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)
