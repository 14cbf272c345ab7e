"""The flags in the chart, read by the command that will get them."""

from __future__ import annotations

from carpool_injector.commands import serve
from carpool_injector.webhook import options
from tests.charts import helm, objects


def serve_options(container: objects.Object) -> options.Options:
    """The flags of the Deployment as `carpool-injector serve` reads them; a flag that does not exist is an error."""
    command, *arguments = container["args"]
    assert command == "serve"
    given = [argument.replace("$(POD_NAMESPACE)", helm.NAMESPACE) for argument in arguments]
    return options.Options(**serve.serve.make_context("serve", given).params)
