"""The chart in a real API server: releases that Helm makes there, and an injector that runs as their pods would.

No node runs the Deployment's pods. So its command is started beside the tests, with the arguments that are stored in
the cluster, as the ServiceAccount that the chart made: what that may not do, the injector cannot do here either.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

from e2e.cluster import client, control_plane, processes
from e2e.injector import installation
from tests import loopback
from tests.charts import helm, objects

READY_SECONDS = 60.0
# Where else the chart's objects are, besides the kinds that the client knows.
MORE_LISTS = ("/apis/policy/v1/poddisruptionbudgets", "/apis/networking.k8s.io/v1/networkpolicies")
POLICY_KINDS = ("policies", "policybindings")
_FLAGS_OF_THIS_MACHINE = ("--config=", "--host=", "--port=", "--metrics-port=", "--quiet-period=")


class Release:
    """One release of the chart, in a namespace of its own; its webhooks act on namespaces with its `labels` only."""

    def __init__(self, admin: client.Client, plane: control_plane.ControlPlane, name: str, folder: Path) -> None:
        self._admin = admin
        self._plane = plane
        self._folder = folder
        self._injector: processes.Process | None = None
        self._probes = 0
        self.name = name
        self.namespace = f"{name}-system"
        self.labels = {installation.ACTS_HERE: name}

    # --- Helm --------------------------------------------------------------------------------------------------------

    def install(self, *more: str) -> str:
        """`helm install`, and what it says. Raises helm.Failed."""
        return self._helm("install", self.name, str(helm.CHART), "--create-namespace", *self._values(), *more)

    def upgrade(self, *more: str) -> str:
        """`helm upgrade`, likewise."""
        return self._helm("upgrade", self.name, str(helm.CHART), *self._values(), *more)

    def uninstall(self) -> None:
        """`helm uninstall`."""
        self._helm("uninstall", self.name, "--ignore-not-found")

    def test(self) -> str:
        """`helm test`, likewise."""
        return self._helm("test", self.name, "--timeout=60s")

    def _values(self) -> list[str]:
        return [*installation.narrowed_to(self.name), "--set=check.enabled=true"]

    def _helm(self, *arguments: str) -> str:
        return helm.run(*arguments, "--namespace", self.namespace, env={"KUBECONFIG": str(self._plane.kubeconfig)})

    def objects(self) -> list[client.Object]:
        """The objects that Helm has created."""
        return objects.parse(self._helm("get", "manifest", self.name))

    def hooks(self) -> list[client.Object]:
        """The objects that `helm test` creates."""
        return objects.parse(self._helm("get", "hooks", self.name))

    # --- what is in the cluster --------------------------------------------------------------------------------------

    def left_over(self) -> list[str]:
        """Everything in the API server that bears this release's label."""
        paths = {kind: f"/{folder}/{plural}" for kind, (folder, plural) in client.RESOURCES.items()}
        del paths["InferenceService"]  # not in every one of these API servers, and not in the chart
        query = f"?labelSelector=app.kubernetes.io/instance={self.name}"
        found = []
        for path in (*paths.values(), *MORE_LISTS, *self._policies()):
            found += [
                f"{path} {each['metadata']['name']}" for each in self._admin.call("GET", path + query).object["items"]
            ]
        return found

    def _policies(self) -> list[str]:
        """The lists of admission policies that this API server has."""
        served = {"mutating": self._plane.mutating_policies}
        if self._plane.validating_policies:
            served["validating"] = control_plane.POLICIES_STABLE
        return [f"/apis/{api}/{what}admission{kind}" for what, api in served.items() if api for kind in POLICY_KINDS]

    def secret(self) -> client.Object:
        """The data of the Secret with the certificates, as it is stored."""
        name = f"{self.name}-carpool-injector-certificates"
        found: client.Object = self._admin.get("Secret", name, self.namespace).get("data") or {}
        return found

    def ca_bundles(self) -> list[str | None]:
        """The caBundle (base64) of every webhook of the release."""
        found = [self._admin.get(each["kind"], each["metadata"]["name"]) for each in self._configurations()]
        return [entry["clientConfig"].get("caBundle") for each in found for entry in each["webhooks"]]

    def _configurations(self) -> list[client.Object]:
        return [each for each in self.objects() if each["kind"] in installation.WEBHOOKS]

    # --- the injector ------------------------------------------------------------------------------------------------

    def start_injector(self) -> int:
        """Runs what the Deployment says, until `stop`. Returns the port for reviews once it is ready."""
        name = f"{self.name}-carpool-injector"
        pod = self._admin.get("Deployment", name, self.namespace)["spec"]["template"]["spec"]
        port, probes = loopback.free_ports(2)
        config = self._folder / f"{self.name}.yaml"
        config.write_text(self._admin.get("ConfigMap", name, self.namespace)["data"]["config.yaml"])
        here = [f"--config={config}", f"--host={control_plane.HOST}", f"--port={port}", f"--metrics-port={probes}"]
        command = self._command(pod, pod["serviceAccountName"])
        arguments = [each for each in command if not each.startswith(_FLAGS_OF_THIS_MACHINE)] + here
        log = self._folder / f"{self.name}.log"
        self._injector = processes.Process(self.name, [*arguments, "--quiet-period=0"], log, helm.ROOT)
        self._probes = probes
        url = f"http://{control_plane.HOST}:{probes}/readyz"
        self._injector.wait_until_ready(lambda: processes.answers_ok(url), READY_SECONDS)
        return port

    def metrics(self) -> str:
        """What the injector shows to Prometheus."""
        with urllib.request.urlopen(f"http://{control_plane.HOST}:{self._probes}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def check(self) -> subprocess.CompletedProcess[str]:
        """Runs what the pod of `helm test` says, with the rights that it has."""
        (pod,) = [each["spec"] for each in self.hooks() if each["kind"] == "Pod"]
        command = self._command(pod, pod["serviceAccountName"])
        return subprocess.run(command, capture_output=True, text=True, cwd=helm.ROOT, timeout=READY_SECONDS)

    def stop(self) -> None:
        """Ends the injector; a second call does nothing."""
        if self._injector is not None:
            self._injector.stop()

    def call_at(self, port: int) -> None:
        """Lets the API server find the injector on this machine: by another port, and a Service that is a name."""
        for each in self._configurations():
            installation.send_reviews_to(self._admin, each["kind"], each["metadata"]["name"], port)
        spec = {"type": "ExternalName", "externalName": control_plane.HOST, "clusterIP": None, "clusterIPs": None}
        self._admin.patch("Service", f"{self.name}-carpool-injector", {"spec": spec}, self.namespace)

    def _command(self, pod: client.Object, account: str) -> list[str]:
        user = f"system:serviceaccount:{self.namespace}:{account}"
        arguments = [each.replace("$(POD_NAMESPACE)", self.namespace) for each in pod["containers"][0]["args"]]
        return [sys.executable, "-m", "carpool_injector", *arguments, f"--kubeconfig={self._plane.kubeconfig_of(user)}"]
