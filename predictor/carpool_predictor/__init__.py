"""The model server that runs beside the sidecar: KServe's v1 protocol in front of models in worker processes."""
