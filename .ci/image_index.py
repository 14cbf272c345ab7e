"""The package index that this machine uses, for pip inside a build: passed as a secret, never part of an image."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from pathlib import Path

# What decides where packages come from; where they are kept, and how pip talks, is up to the build.
KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
# uv's words for the first two, oldest last.
WORDS_OF_UV = {"index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL")}
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
SECRET_CERTIFICATES = "/run/secrets/ca.pem"


def configuration_files(environment: Mapping[str, str]) -> list[Path]:
    """Where pip looks for its settings, the ones that win last."""
    home = Path(environment.get("HOME", "/"))
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip" / "pip.conf", own]
    return [*files, Path(environment["PIP_CONFIG_FILE"])] if environment.get("PIP_CONFIG_FILE") else files


def settings(environment: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    """What pip is told here, by files and then by the environment; uv's variables fill what both leave open."""
    parser = configparser.RawConfigParser()
    parser.read(files)
    told: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            told |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    told |= {
        key: environment[name]
        for key in (*KEYS, "cert")
        if (name := f"PIP_{key.upper().replace('-', '_')}") in environment
    }
    for key, names in WORDS_OF_UV.items():
        for name in names:
            if name in environment:
                told.setdefault(key, environment[name])
    return told


def secrets(environment: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Name of the secret to its file, made in `folder`; nothing where the public index needs no settings."""
    told = settings(environment, configuration_files(environment))
    lines = [f"{key} = {told[key]}" for key in KEYS if key in told]
    named = [told.get("cert", ""), *(environment.get(name, "") for name in CERTIFICATES)]
    bundles = [Path(path) for path in named if path and Path(path).is_file()]
    found: dict[str, Path] = {}
    if bundles:
        lines.append(f"cert = {SECRET_CERTIFICATES}")
        found["ca.pem"] = bundles[0].resolve()
    if lines:
        found["pip.conf"] = folder / "pip.conf"
        found["pip.conf"].touch(mode=0o600)
        found["pip.conf"].write_text("\n".join(["[global]", *lines, ""]))
    return found
