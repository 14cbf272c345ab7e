"""What the settings say of the predictor, put together: connections to it, what it tells of its models, the routes.

What serves gRPC or makes tensors of v1 instances is loaded only where it is asked for: it needs packages that a plain
install does not have, and memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from carpool_sidecar import config
from carpool_sidecar.batching import calls, model_registry, routes
from carpool_sidecar.protocols import models, v1
from carpool_sidecar.protocols.v2_http import binary, codec
from carpool_sidecar.server import v1_models
from carpool_sidecar.upstream import model_questions, predictor, probes

if TYPE_CHECKING:
    from carpool_sidecar.upstream import grpc_predictor as rpc_predictor


# Seconds after which a question that failed is asked again, at most. While v1 requests cannot be made into tensors they
# fail; those of v2 are passed through.
_IMPATIENT, _PATIENT = 1.0, 30.0


class Upstreams:
    """The predictor's ports and protocols, from within a running event loop. `rpc` is None where no gRPC is spoken."""

    # State: the connections, and what was asked of models.
    def __init__(
        self, chosen: config.Settings, base: str, clock: Callable[[], float], on_bug: Callable[[], None]
    ) -> None:
        """`base` is the predictor's `http://HOST:PORT`; `on_bug` is called for each bug met, which is in the log."""
        self._settings = chosen
        self._on_bug = on_bug
        self._clock = clock
        self._catalogs: list[model_registry.Catalog] = []
        self.http = predictor.HttpPredictor(base, chosen.connect_timeout, chosen.max_queue_bytes, on_bug)
        self.questions = model_questions.HttpQuestions(base)
        self.rpc = self._open_rpc() if chosen.grpc_port or chosen.upstream == "triton-grpc" else None
        memory = codec.Memory()
        infer = self._catalog(self.questions.model_info, lambda model: codec.Codec(model.info, model.avoid, memory))
        self.routes = routes.Routes(self._v1(), routes.Models(infer, self.http))

    def rpc_models(self, rpc: rpc_predictor.GrpcPredictor) -> routes.Models:
        """The models of gRPC callers."""
        from carpool_sidecar.protocols.v2_grpc import codec as rpc_codec

        told = self._catalog(rpc.model_info, lambda model: rpc_codec.Codec(model.info, model.avoid))
        return routes.Models(told, rpc, is_http=False)

    def v1_models(self) -> v1_models.V1Models | None:
        """What answers v1's questions about models, if the predictor does not."""
        if self._settings.upstream == "http":
            return None
        if self.rpc is not None and self._settings.upstream == "triton-grpc":
            return v1_models.V1Models(self.rpc, is_http=False)
        return v1_models.V1Models(self.questions)

    async def close(self) -> None:
        """Close all connections; what is out fails."""
        for each in self._catalogs:
            await each.close()
        await self.http.close()
        await self.questions.close()
        if self.rpc is not None:
            await self.rpc.close()

    # --- parts -------------------------------------------------------------------------------------------------

    def _v1(self) -> calls.Route | routes.Tensors:
        if self._settings.upstream == "http":
            return calls.Route(v1.Codec(), self.http, doubtful=routes.DOUBTFUL)
        from carpool_sidecar.protocols import tensors_from_v1

        if self.rpc is None or self._settings.upstream == "triton-http":
            told = self._catalog(
                self.questions.model_info,
                lambda model: tensors_from_v1.Codec(model.name, model.info, binary),
                _IMPATIENT,
            )
            return routes.Tensors(told, self.http)
        from carpool_sidecar.protocols.v2_grpc import messages

        told = self._catalog(
            self.rpc.model_info, lambda model: tensors_from_v1.Codec(model.name, model.info, messages), _IMPATIENT
        )
        return routes.Tensors(told, self.rpc, is_http=False)

    def _open_rpc(self) -> rpc_predictor.GrpcPredictor:
        from carpool_sidecar.upstream import grpc_predictor as rpc_predictor

        address = f"{probes.LOOPBACK}:{self._settings.component_grpc_port}"
        chosen = self._settings
        return rpc_predictor.GrpcPredictor(address, chosen.connect_timeout, chosen.max_queue_bytes, self._on_bug)

    def _catalog(
        self,
        ask: Callable[[models.ModelName], Awaitable[models.ModelInfo]],
        make_codec: Callable[[model_registry.Model], model_registry.InformedCodec],
        longest_pause: float = _PATIENT,
    ) -> model_registry.Catalog:
        batches_unknown = self._settings.unknown_models == "batch"
        made = model_registry.Catalog(ask, make_codec, batches_unknown, self._clock, longest_pause, self._on_bug)
        self._catalogs.append(made)
        return made
