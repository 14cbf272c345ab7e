"""Dynamic batching: when a batch leaves and who is in it. Pure scheduling, and what drives it."""

__version__ = "0.1.0"
