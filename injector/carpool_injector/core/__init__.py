"""One pod: whether it gets the sidecar, how, and what becomes of it. Values in, values out."""
