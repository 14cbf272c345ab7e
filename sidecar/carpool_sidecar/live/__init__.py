"""What people see of a running sidecar: a live page, and `top` and `tap` in a terminal, over one stream of events."""
