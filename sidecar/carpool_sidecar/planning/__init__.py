"""Answers questions about load before there is any: the production scheduler in front of a modelled predictor."""
