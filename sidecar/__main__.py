"""`python -m sidecar`."""

from sidecar import cli

cli.main()
