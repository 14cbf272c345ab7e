"""`python -m carpool_sidecar`."""

from carpool_sidecar.app import cli

cli.main()
