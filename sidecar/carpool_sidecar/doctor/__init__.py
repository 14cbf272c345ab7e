"""What a running predictor is, which rules fit it, and what to set: concluded from its answers."""
