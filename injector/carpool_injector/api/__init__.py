"""The Kubernetes API, as far as the injector asks it. The only place that imports `kubernetes`."""
