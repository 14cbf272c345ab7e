"""`python -m e2e.cluster up`: a control plane to look at by hand, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from e2e.cluster import binaries, client, control_plane, kserve, processes

USAGE = "usage: python -m e2e.cluster up      starts a control plane, prints its KUBECONFIG, waits for Ctrl-C"


def up() -> None:
    """Runs until a signal. The folder with all certificates, data and logs goes with it."""
    with tempfile.TemporaryDirectory(prefix="carpool-e2e-") as folder, control_plane.running(Path(folder)) as plane:
        kserve.install_resource_definitions(client.Client(plane.kubeconfig))
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        binaries.say(f"logs are in {folder}; Ctrl-C ends it all")
        try:
            signal.pause()
        except KeyboardInterrupt:
            binaries.say("stopping")


def main() -> int:
    if sys.argv[1:] != ["up"]:
        print(USAGE, file=sys.stderr)
        return 2
    # Exceptions, so that the clean-up runs. Ctrl-C too: a shell has background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        up()
    except KeyboardInterrupt:
        pass
    except (binaries.Unavailable, binaries.BuildFailed, kserve.Missing, processes.ProcessFailed) as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
