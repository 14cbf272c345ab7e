"""The v2 protocol over gRPC: serialized ModelInfer messages, batched as bytes."""
