"""The v1 protocol for predictors that speak only v2: instances become tensors, and tensors predictions.

It decodes what callers send, and so needs numpy and orjson; it is only imported where the predictor is asked in v2
(`--upstream triton-http` or `triton-grpc`).
"""

from carpool_sidecar.protocols.tensors_from_v1.codec import Transport
from carpool_sidecar.protocols.tensors_from_v1.front import Codec

__all__ = ["Codec", "Transport"]
