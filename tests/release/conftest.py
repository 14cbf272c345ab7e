"""The release's scripts as modules."""

from tests.ci_scripts import script

__all__ = ["script"]
