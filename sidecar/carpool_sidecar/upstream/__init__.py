"""Talks to the predictor: batches, and the question whether it is ready."""
