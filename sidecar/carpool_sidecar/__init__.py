"""The batching sidecar: merges concurrent v1 predict requests into one call to the predictor beside it."""

__version__ = "0.1.0"
__all__ = ["__version__"]
