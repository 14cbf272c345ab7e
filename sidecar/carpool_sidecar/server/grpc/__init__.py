"""gRPC: v2's `ModelInfer` batched, everything else passed through as bytes.

Imported only where gRPC is asked for, as it needs packages that a plain installation lacks.
"""
