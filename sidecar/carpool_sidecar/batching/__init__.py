"""From requests to calls of the predictor: which are batched, on which route, by which model's rules."""
