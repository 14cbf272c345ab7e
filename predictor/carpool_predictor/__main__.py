"""The console script, and `python -m carpool_predictor`: signals count before anything else is imported."""

from __future__ import annotations

from carpool.program import signals


def main() -> int:
    """Run the predictor with the arguments of the process. Returns what `process.main` does."""
    signals.at_start("carpool-predictor")
    try:
        from carpool_predictor import process

        return process.main()
    finally:
        signals.at_end()


if __name__ == "__main__":
    raise SystemExit(main())
