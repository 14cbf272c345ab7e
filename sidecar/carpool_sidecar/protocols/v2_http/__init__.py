"""The v2 protocol (Open Inference Protocol): tensors in JSON or binary, batched along their first dimension."""
