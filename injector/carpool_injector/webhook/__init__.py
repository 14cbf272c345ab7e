"""The webhook as a program: the server, what it knows of the cluster, and what it tells."""
