"""The models that come with the predictor. Only `minilm` imports torch."""
