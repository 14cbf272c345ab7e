"""`carpool-predictor`: the only place where settings, logs and the server are joined."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import uvloop

from carpool.program import logs, settings
from carpool_predictor import config, errors, lifecycle

log = logging.getLogger("predictor")

_EPILOG = """paths:
  POST /v1/models/NAME:predict   {"instances": [...]} -> {"predictions": [...]}
  GET  /v1/models, /v1/models/NAME, /livez, /readyz

your own model: a class with load(), warm_up() and predict(instances); help(carpool_predictor.model) tells more

examples:
  carpool-predictor --models minilm
  carpool-predictor --models words=words:WordCount,echo --port 8080
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the predictor. Returns 0 after a clean stop, 1 if the port is taken, 2 for unusable settings."""
    chosen = settings.load(config.Settings, sys.argv[1:] if argv is None else argv, _EPILOG)
    logs.set_up(chosen.log_format, chosen.log_level)
    try:
        uvloop.run(lifecycle.run(chosen))
    except errors.Unusable as error:
        settings.fail("carpool-predictor", str(error))
    except OSError as error:
        log.error("cannot listen", extra=logs.facts(host=chosen.host, port=chosen.port, error=str(error)))
        return 1
    return 0
