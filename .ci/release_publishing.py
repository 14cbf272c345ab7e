"""A release goes out: images of both architectures under one name, the chart, bills of materials, signatures.

    REGISTRY/carpool-sidecar:1.2.3          an index of the images for amd64 and arm64; injector and predictor likewise
    REGISTRY/charts/carpool:1.2.3           the chart
    beside each, by cosign                  a signature, and for each image its bill of materials (SPDX) as attestation

With a key, signatures need nothing but the registry. Without one they are keyless: cosign asks for the identity of the
workflow that runs, and writes into the public log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release_artifacts import ARCHITECTURES, PARTS, Say, run
from release_versions import ROOT, Problem

TOOLS = ("crane", "cosign", "syft")
TOOL_PINS = ROOT / ".ci" / "release_tools"
DIGESTS = "digests.json"
_UP_SECONDS = 20.0
_OFFLINE = {"SYFT_CHECK_FOR_APP_UPDATE": "false"}
_NO_LOG = "no-log.json"
_NO_PASSWORD = {"COSIGN_PASSWORD": ""}


def build_tools(folder: Path, say: Say) -> None:
    """crane, cosign and syft from their Go modules, as `.ci/release_tools` pins them, into a folder. Raises Problem."""
    folder.mkdir(parents=True, exist_ok=True)
    for tool in TOOLS:
        pins = TOOL_PINS / tool
        stamp, wanted = folder / f"{tool}.sum", (pins / "go.sum").read_text()
        if stamp.is_file() and stamp.read_text() == wanted and (folder / tool).is_file():
            continue
        say(f"building {tool}; once, minutes")
        flags = {"GOWORK": "off", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"}
        run(["go", "build", "-C", pins, "-o", folder.resolve() / tool, "tool"], env=flags)
        stamp.write_text(wanted)


@contextlib.contextmanager
def registry(crane: Path, say: Say) -> Iterator[str]:
    """A registry in memory, on loopback, as `127.0.0.1:PORT`; gone at the end. Raises Problem."""
    command = [crane, "registry", "serve", "--address", "127.0.0.1:0"]
    # Into a file: it writes a line for each request, and would wait for ever on a pipe that nobody reads.
    with (
        tempfile.NamedTemporaryFile("w+", prefix="carpool-registry-") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as serving,
    ):
        try:
            address = f"127.0.0.1:{_port_told(Path(log.name))}"
            say(f"a registry answers on {address}")
            yield address
        finally:
            serving.terminate()


def _port_told(log: Path) -> int:
    """The port that the registry tells once it listens. Raises Problem."""
    deadline = time.monotonic() + _UP_SECONDS
    while (told := re.search(r"serving on port (\d+)\n", log.read_text())) is None:
        if time.monotonic() > deadline:
            raise Problem(f"the registry does not start: {log.read_text().strip() or 'it says nothing'}")
        time.sleep(0.05)
    return int(told[1])


@dataclass(frozen=True)
class Signer:
    """How to sign and to verify: by a key, or keyless by the identity of a workflow."""

    cosign: Path
    key: Path | None = None  # cosign.key; its public half lies beside it
    identity: str = ""  # keyless: what certificates have to say, as a regular expression
    issuer: str = "https://token.actions.githubusercontent.com"

    def sign(self, reference: str) -> None:
        """Sign what a digest names, with the images within it."""
        run([self.cosign, "sign", "--yes", "--recursive", *self.signing(), reference], env=self._env())

    def attest(self, reference: str, bill: Path) -> None:
        """Attach a bill of materials, signed."""
        kind = ["--type", "spdxjson", "--predicate", bill]
        run([self.cosign, "attest", "--yes", *kind, *self.signing(), reference], env=self._env())

    def sign_file(self, path: Path) -> Path:
        """Sign a file; the signature lies beside it."""
        bundle = path.with_name(f"{path.name}.sigstore.json")
        run([self.cosign, "sign-blob", "--yes", "--bundle", bundle, *self.signing(), path], env=self._env())
        return bundle

    def verify(self, reference: str) -> None:
        """Raises Problem if the signature is missing or another's."""
        run([self.cosign, "verify", *self.verifying(), reference])

    def verify_bill(self, reference: str) -> None:
        """Likewise for the bill of materials."""
        run([self.cosign, "verify-attestation", "--type", "spdxjson", *self.verifying(), reference])

    def verify_file(self, path: Path) -> None:
        """Likewise for a file."""
        bundle = path.with_name(f"{path.name}.sigstore.json")
        run([self.cosign, "verify-blob", "--bundle", bundle, *self.verifying(), path])

    def _env(self) -> Mapping[str, str]:
        return _NO_PASSWORD if self.key and "COSIGN_PASSWORD" not in os.environ else {}

    def signing(self) -> list[str | Path]:
        """cosign's options for a signature."""
        # Signatures by a key go into no public log: a rehearsal is nobody's business, and needs no network.
        return ["--key", self.key, "--signing-config", self.key.with_name(_NO_LOG)] if self.key else []

    def verifying(self) -> list[str | Path]:
        """cosign's options for a check. Raises Problem if it would accept anybody's signature."""
        if self.key:
            return ["--key", self.key.with_suffix(".pub"), "--insecure-ignore-tlog=true"]
        if not self.identity:
            raise Problem("without a key, say whose signature is expected: --identity '^https://github.com/…'")
        return ["--certificate-identity-regexp", self.identity, "--certificate-oidc-issuer", self.issuer]


def new_key(cosign: Path, folder: Path) -> Path:
    """A key without a password, for a rehearsal, and beside it services to sign with: none. Its private half's path."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / "rehearsal"
    for old in folder.glob("rehearsal.*"):
        old.unlink()
    run([cosign, "generate-key-pair", "--output-key-prefix", prefix], env=_NO_PASSWORD)
    run([cosign, "signing-config", "create", "--out", folder / _NO_LOG])
    return prefix.with_suffix(".key")


class Publisher:
    """Pushes a release's files from `folder` to a registry, and signs what it pushed."""

    def __init__(self, folder: Path, target: str, version: str, tools: Path, signer: Signer, say: Say) -> None:
        self._folder = folder
        self._target = target.rstrip("/")
        self._version = version
        self._crane = tools / "crane"
        self._syft = tools / "syft"
        self._signer = signer
        self._say = say
        self._is_plain = self._target.startswith(("127.0.0.1", "localhost"))

    def images(self, architectures: Sequence[str] = ARCHITECTURES, parts: Sequence[str] = PARTS) -> Mapping[str, str]:
        """Push archives and an index of each image; sign them. What they are called then, with digests."""
        references = {}
        for part in parts:
            name = f"{self._target}/carpool-{part}"
            single = [self._push(part, name, architecture) for architecture in architectures]
            self._say(f"{name}:{self._version} is for {' and '.join(architectures)}")
            manifests = [word for one in single for word in ("--manifest", one)]
            tag = f"{name}:{self._version}"
            run([self._crane, "index", "append", *self._plain(), *manifests, "--tag", tag, "--docker-empty-base=false"])
            references[part] = f"{tag}@{self._digest(tag)}"
            self._signer.sign(f"{name}@{self._digest(tag)}")
        digests = self._folder / DIGESTS
        digests.write_text(json.dumps(references, indent=2) + "\n")
        return references

    def chart(self, package: Path, helm: Path) -> str:
        """Push the chart and sign it. What it is called then, with its digest."""
        plain = ["--plain-http"] if self._is_plain else []
        said = run([helm, "push", package, f"oci://{self._target}/charts", *plain])
        digest = re.search(r"Digest: (sha256:\w+)", said)
        if digest is None:
            raise Problem(f"helm pushed the chart and told no digest: {said}")
        reference = f"{self._target}/charts/carpool@{digest[1]}"
        self._signer.sign(reference)
        self._say(f"the chart is oci://{self._target}/charts/carpool, version {self._version}")
        return reference

    def verify(self, references: Mapping[str, str], chart: str) -> None:
        """Every signature and bill of materials, as somebody else would check them. Raises Problem."""
        for reference in [*references.values(), chart]:
            self._signer.verify(reference)
            self._say(f"signed: {reference}")
        for part, reference in references.items():
            index = json.loads(run([self._crane, "manifest", *self._plain(), reference]))
            for entry in index["manifests"]:
                one = f"{self._target}/carpool-{part}@{entry['digest']}"
                self._signer.verify(one)
                self._signer.verify_bill(one)
            platforms = ", ".join(entry["platform"]["architecture"] for entry in index["manifests"])
            self._say(f"carpool-{part} for {platforms}: signed, with their bills of materials")

    def _push(self, part: str, name: str, architecture: str) -> str:
        archive = self._folder / "images" / f"carpool-{part}-{architecture}.tar"
        if not archive.is_file():
            raise Problem(f"there is no {archive}: `release.py images --arch {architecture}` makes it")
        self._say(f"pushing {archive.name}")
        tag = f"{name}:{self._version}-{architecture}"
        run([self._crane, "push", *self._plain(), archive, tag])
        reference = f"{name}@{self._digest(tag)}"
        bill = self._folder / "bills" / f"carpool-{part}-{architecture}.spdx.json"
        bill.parent.mkdir(exist_ok=True)
        # By its own name: syft would call the image by the path of the archive.
        named = ["--source-name", f"carpool-{part}", "--source-version", self._version]
        scan = [self._syft, "scan", "--quiet", f"docker-archive:{archive}", *named, "--output", f"spdx-json={bill}"]
        run(scan, env=_OFFLINE)
        self._signer.attest(reference, bill)
        return reference

    def _digest(self, reference: str) -> str:
        return run([self._crane, "digest", *self._plain(), reference]).strip()

    def _plain(self) -> list[str]:
        return ["--insecure"] if self._is_plain else []


def packages_listed(bill: Path) -> set[str]:
    """The names in a bill of materials."""
    return {canonicalize_name(entry["name"]) for entry in json.loads(bill.read_text())["packages"]}


def pinned(requirements: str) -> Iterator[str]:
    """The names of the packages that a requirements file has for this platform."""
    for line in re.findall(r"(?m)^[A-Za-z0-9][^\\\n]*", requirements):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            yield canonicalize_name(requirement.name)


def check_bills(folder: Path) -> None:
    """Each bill is of its image, by name, and names the packages its requirements pin. Raises Problem if not.

    A bill that a scanner made of an image it could not read is empty, and nobody would notice.
    """
    bills = sorted((folder / "bills").glob("*.json"))
    if not bills:
        raise Problem(f"there is no bill of materials in {folder / 'bills'}")
    for bill in bills:
        about = json.loads(bill.read_text())["name"]
        if bill.name.rpartition("-")[0] != about:
            raise Problem(f"{bill} is a bill of {about!r}, and is read as that by whoever gets it")
    for part in ("sidecar", "injector"):
        wanted = set(pinned((ROOT / part / "requirements.txt").read_text()))
        for bill in sorted((folder / "bills").glob(f"carpool-{part}-*.json")):
            listed = packages_listed(bill)
            if missing := sorted(wanted - listed):
                raise Problem(f"{bill} lacks {', '.join(missing)}")
