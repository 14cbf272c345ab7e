"""The batching sidecar: merges concurrent predict requests (v1, v2, gRPC) into one call to the predictor."""

__version__ = "0.1.0"
__all__ = ["__version__"]
