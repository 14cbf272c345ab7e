"""Batching in your own process: a function of a list becomes one that many callers call with single items."""
