"""What `carpool-injector serve` can be told. A module of its own, so that the command line knows the flags without
loading a web server.

The admin's choices about sidecars (image, resources, defaults) are not here but in the configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CertificatesMode = Literal["self-managed", "files"]
TlsVersion = Literal["1.2", "1.3"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field for each flag of `serve`; the text of a flag is the field's `metadata["help"]`.

    Durations are seconds, sizes bytes. The combinations that cannot work are told by `problems`.
    """

    # --- what is served --------------------------------------------------------------------------------------------
    host: str = field(default="0.0.0.0", metadata={"help": "Address to listen on."})
    port: int = field(
        default=9443, metadata={"help": "Port for /mutate and /validate over TLS; 0 takes a free one, told in the log."}
    )
    metrics_port: int | None = field(
        default=9444,
        metadata={
            "help": "Port for /livez, /readyz and /metrics over plain HTTP; the TLS port has them as well. Empty: none."
        },
    )
    config: str | None = field(
        default=None, metadata={"help": "The admin's configuration file (YAML or JSON). Empty: the defaults."}
    )

    # --- TLS ---------------------------------------------------------------------------------------------------------
    certificates: CertificatesMode = field(
        default="self-managed",
        metadata={
            "help": "self-managed: the injector makes, rotates and publishes its certificates; files: --cert-dir has "
            "them, from cert-manager or an existing Secret."
        },
    )
    cert_dir: str = field(
        default="/etc/carpool/tls",
        metadata={"help": "Directory with tls.crt and tls.key (and ca.crt), read again when they change; files only."},
    )
    tls_min_version: TlsVersion = field(default="1.3", metadata={"help": "The oldest version of TLS that is spoken."})
    client_ca: str | None = field(
        default=None,
        metadata={
            "help": "File with the CAs (PEM) of client certificates, which reviews then have to come with. "
            "Empty: anyone may call."
        },
    )
    client_names: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Common names or DNS names of client certificates that may call. Empty: all that --client-ca has "
            "signed."
        },
    )

    # --- where the injector's own objects are ----------------------------------------------------------------------
    namespace: str = field(
        default="carpool-system", metadata={"help": "Namespace the injector runs in: of its Service and Secret."}
    )
    service_name: str = field(
        default="carpool-injector", metadata={"help": "The Service in front of the injector: names in its certificate."}
    )
    secret_name: str = field(
        default="carpool-injector-certificates",
        metadata={"help": "Secret that keeps the certificates; self-managed only."},
    )
    mutating_webhook: str = field(
        default="carpool-injector",
        metadata={"help": "MutatingWebhookConfiguration whose caBundle is kept right; self-managed only."},
    )
    validating_webhook: str | None = field(
        default="carpool-injector", metadata={"help": "ValidatingWebhookConfiguration, likewise. Empty: there is none."}
    )

    # --- the cluster -------------------------------------------------------------------------------------------------
    kubeconfig: str | None = field(
        default=None, metadata={"help": "Kubeconfig file. Empty: the pod's service account, else the usual places."}
    )
    context: str | None = field(default=None, metadata={"help": "Context of the kubeconfig. Empty: its current one."})
    read_timeout: float = field(
        default=2.0, metadata={"help": "Seconds a read of a namespace may take while a review waits for it."}
    )
    events: bool = field(
        default=True,
        metadata={"help": "Tell the pod's owner in an Event why a pod that asked for the sidecar has none."},
    )

    # --- limits ------------------------------------------------------------------------------------------------------
    max_concurrent: int = field(
        default=1024, metadata={"help": "Reviews at work at once; beyond it the answer is 503. Connections: 64 more."}
    )
    max_held_bytes: int = field(
        default=64 * 1024 * 1024, metadata={"help": "Bytes of their bodies held at once; beyond it the answer is 503."}
    )
    max_body_bytes: int = field(
        default=7 * 1024 * 1024, metadata={"help": "Bytes of one review; beyond it the answer is 413."}
    )
    body_timeout: float = field(
        default=10.0, metadata={"help": "Seconds for a review's body to arrive; then the answer is 408."}
    )

    # --- the way out -------------------------------------------------------------------------------------------------
    quiet_period: float = field(
        default=5.0,
        metadata={"help": "Seconds after SIGTERM in which reviews are still served while endpoints forget this pod."},
    )
    grace_period: float = field(
        default=20.0,
        metadata={"help": "Seconds from SIGTERM to exit, at most; keep it below terminationGracePeriodSeconds."},
    )

    # --- logs --------------------------------------------------------------------------------------------------------
    log_level: LogLevel = field(default="info", metadata={"help": "Least severity to log; debug tells of each review."})
    log_format: LogFormat = field(default="auto", metadata={"help": "auto: text on a terminal, JSON elsewhere."})

    def problems(self) -> list[str]:
        """What cannot work, one sentence each; [] when all is well."""
        found = [
            f"{flag} is {value}, but must be {allowed}" for flag, value, allowed, fine in self._bounds() if not fine
        ]
        if self.client_names and not self.client_ca:
            found.append("client_names need client_ca: without it no client shows a certificate")
        if self.metrics_port is not None and self.metrics_port == self.port != 0:
            found.append(f"metrics_port and port are both {self.port}; give them different ones")
        if self.grace_period < self.quiet_period:
            found.append(f"grace_period ({self.grace_period:g} s) ends before quiet_period ({self.quiet_period:g} s)")
        return found

    def _bounds(self) -> list[tuple[str, float, str, bool]]:
        ports = [("port", self.port)] + ([("metrics_port", self.metrics_port)] if self.metrics_port is not None else [])
        positive = ("read_timeout", "body_timeout", "max_concurrent", "max_body_bytes")
        return [
            *((flag, port, "0 to 65535", 0 <= port <= 65535) for flag, port in ports),
            *((flag, getattr(self, flag), "above 0", getattr(self, flag) > 0) for flag in positive),
            *((flag, getattr(self, flag), "0 or more", getattr(self, flag) >= 0) for flag in ("quiet_period",)),
            (
                "max_held_bytes",
                self.max_held_bytes,
                f"at least max_body_bytes ({self.max_body_bytes})",
                self.max_held_bytes >= self.max_body_bytes,
            ),
        ]
