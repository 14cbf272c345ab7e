"""gRPC: v2's `ModelInfer` is batched, every other call is passed through as bytes."""
