"""Writes what is made from the chart."""

from __future__ import annotations

import argparse

from tests.charts import injected, pages

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    pages.SCHEMA.write_text(pages.schema(pages.SCHEMA.read_text()))
    injected.TEMPLATE.write_text(injected.text())
    pages.NEEDED.write_text(pages.needed_template())
    pages.README.write_text(pages.readme(pages.README.read_text()))
    pages.INSTALL.write_text(pages.install())
