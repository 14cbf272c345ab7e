"""Carpool's injector: puts the batching sidecar in front of a predictor, as an admission webhook or offline."""

__version__ = "0.1.0"
