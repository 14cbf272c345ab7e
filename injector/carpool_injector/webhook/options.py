"""What `carpool-injector serve` can be told. A module of its own, so that the command line knows the flags without
loading a web server.

The admin's choices about sidecars (image, resources, defaults) are not here but in the configuration file.
"""

from __future__ import annotations

from typing import Literal

import pydantic

from carpool.program import logs

CertificatesMode = Literal["self-managed", "files"]
TlsVersion = Literal["1.2", "1.3"]


class Options(pydantic.BaseModel):
    """One field for each flag of `serve`, with its help. Durations are seconds, sizes bytes.

    `problems` tells of values and combinations that cannot work.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # --- what is served --------------------------------------------------------------------------------------------
    host: str = "::"
    """Address to listen on; :: means all, over IPv6 and IPv4."""
    port: int = 9443
    """Port for /mutate and /validate over TLS; 0 takes a free one, told in the log."""
    metrics_port: int | None = 9444
    """Port for /livez, /readyz and /metrics over plain HTTP; the TLS port has them as well. Empty: none."""
    config: str | None = None
    """The admin's configuration file (YAML or JSON). Empty: the defaults."""

    # --- TLS ---------------------------------------------------------------------------------------------------------
    certificates: CertificatesMode = "self-managed"
    """self-managed: the injector makes, rotates and publishes its certificates; files: --cert-dir has them."""
    cert_dir: str = "/etc/carpool/tls"
    """Directory with tls.crt and tls.key (and ca.crt), read again when they change; files only."""
    tls_min_version: TlsVersion = "1.3"
    """The oldest version of TLS that is spoken."""
    client_ca: str | None = None
    """File with the CAs (PEM) of client certificates, which reviews then have to come with. Empty: anyone may call."""
    client_names: tuple[str, ...] = ()
    """Common names or DNS names of client certificates that may call. Empty: all that --client-ca has signed."""

    # --- where the injector's own objects are ----------------------------------------------------------------------
    namespace: str = "carpool-system"
    """Namespace the injector runs in: of its Service and Secret."""
    service_name: str = "carpool-injector"
    """The Service in front of the injector: names in its certificate."""
    secret_name: str = "carpool-injector-certificates"  # noqa: S105 - a name
    """Secret that keeps the certificates; self-managed only."""
    mutating_webhook: str = "carpool-injector"
    """MutatingWebhookConfiguration whose caBundle is kept right; self-managed only."""
    validating_webhook: str | None = "carpool-injector"
    """ValidatingWebhookConfiguration, likewise. Empty: there is none."""

    # --- the cluster -------------------------------------------------------------------------------------------------
    kubeconfig: str | None = None
    """Kubeconfig file. Empty: the pod's service account, else the usual places."""
    context: str | None = None
    """Context of the kubeconfig. Empty: its current one."""
    read_timeout: float = 2.0
    """Seconds a read of a namespace may take while a review waits for it."""
    events: bool = True
    """Tell the pod's owner in an Event why a pod that asked for the sidecar has none."""
    missed_pods: bool = True
    """Find pods that were created without their sidecar, every two minutes: count them, and tell their owners in
    Events. It takes the right to list pods."""
    restart_missed_pods: bool = False
    """Evict such pods, so that their owners make new ones: one of each at a time, within PodDisruptionBudgets. It
    takes the right to create pods/eviction."""

    # --- limits ------------------------------------------------------------------------------------------------------
    max_concurrent: int = 1024
    """Reviews at work at once; beyond it the answer is 503. Connections: 64 more."""
    max_held_bytes: int = 64 * 1024 * 1024
    """Bytes of their bodies held at once; beyond it the answer is 503."""
    max_body_bytes: int = 7 * 1024 * 1024
    """Bytes of one review; beyond it the answer is 413."""
    body_timeout: float = 10.0
    """Seconds for a review's body to arrive; then the answer is 408."""

    # --- the way out -------------------------------------------------------------------------------------------------
    quiet_period: float = 5.0
    """Seconds after SIGTERM in which reviews are still served while endpoints forget this pod."""
    grace_period: float = 20.0
    """Seconds from SIGTERM to exit, at most; keep it below terminationGracePeriodSeconds."""

    # --- logs --------------------------------------------------------------------------------------------------------
    log_level: logs.Level = "info"
    """Least severity to log; debug tells of each review."""
    log_format: logs.Format = "auto"
    """auto: text on a terminal, JSON elsewhere."""

    def problems(self) -> list[str]:
        """What cannot work, one sentence each; [] when all is well."""
        found = [
            f"{flag} is {value:.15g}, but must be {allowed}"
            for flag, value, allowed, fine in self._bounds()
            if not fine
        ]
        if self.restart_missed_pods and not self.missed_pods:
            found.append("restart_missed_pods needs missed_pods, which finds them")
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
