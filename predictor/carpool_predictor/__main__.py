"""`python -m carpool_predictor`, the same as `carpool-predictor`."""

from __future__ import annotations

from carpool_predictor import process

if __name__ == "__main__":
    raise SystemExit(process.main())
