"""Rerank requests for predictors that take pairs of texts: the query and one document in each row."""
