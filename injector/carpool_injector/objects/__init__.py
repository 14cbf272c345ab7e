"""What people apply: workloads, InferenceServices, reviews of them. Values in, values out."""
