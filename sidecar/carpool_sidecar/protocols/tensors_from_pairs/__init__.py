"""Rerank requests for predictors that speak only v2: queries and documents become tensors, and a tensor's rows scores.

Like `tensors_from_v1` it is only imported where settings ask for it: `--rerank-to v2`.
"""

from carpool_sidecar.protocols.tensors_from_pairs.front import Codec

__all__ = ["Codec"]
