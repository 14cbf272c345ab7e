"""The command line of KServe's agent (cmd/agent/main.go of kserve/kserve), for a sidecar that takes its place."""

from __future__ import annotations

from collections.abc import Sequence

# KServe's agent also pulls models and logs payloads. Ignoring those flags would lose data silently.
_PULLER = ("--enable-puller", "--config-dir", "--model-dir")
_LOGGER = (
    "--log-url", "--workers", "--source-uri", "--log-mode", "--log-store-path", "--log-store-format",
    "--log-marshaller-url", "--log-marshaller-port", "--log-batch-size", "--log-batch-interval",
    "--inference-service", "--namespace", "--endpoint", "--component", "--metadata-headers",
    "--metadata-annotations", "--logger-ca-cert-file", "--logger-tls-skip-verify",
)  # fmt: skip


def problem(argv: Sequence[str]) -> str | None:
    """What is asked of the agent that this program does not do, in words; None if nothing is."""
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in _PULLER and value != "false":
            return f"{name}: this is the batcher only; keep KServe's own agent image for the model puller"
        if name in _LOGGER:
            return f"{name}: this is the batcher only; keep KServe's own agent image for payload logging"
    return None


def in_our_words(argv: Sequence[str]) -> list[str]:
    """Spell --max-batchsize our way, and leave out what KServe's agent declares and this program has no use for.

    The other spelling is no alias of the field: an alias would also be an environment variable, without prefix.
    """
    kept: list[str] = []
    skip = False
    for argument in argv:
        name, _, value = argument.partition("=")
        if name == "--max-batchsize":
            argument = argument.replace(name, "--max-batch-size", 1)
        if not skip and name != "--probe-period" and not (name in _PULLER and value == "false"):
            kept.append(argument)
        skip = not skip and argument == "--probe-period"
    return kept
