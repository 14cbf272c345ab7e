"""The front door: batched predict requests, everything else passed through, probes, and the admin port."""
