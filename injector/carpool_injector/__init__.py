"""Carpool's injector: puts the batching sidecar in front of a predictor, as an admission webhook or offline.

Read these five files first:

1. `core/injection.py`: what happens to a pod, step by step
2. `core/permission.py`: may a pod be injected, and if not, why; who asks for it stands in `core/decision.py`
3. `core/servers.py`: where each server listens, and which setting tells it otherwise
4. `core/takeover/choice.py`: the five ways in front of the app, and which one is taken
5. `webhook/service.py`: what the webhook is made of, how it starts and ends

`core` (one pod) and `objects` (what people apply) take values and return values: no clock, no I/O, no Kubernetes
client. Their mutable objects live for one call only. State that outlives a review, and who writes it:

| class | state | written by |
|---|---|---|
| `webhook.cluster.Namespaces` | namespaces as the watch told them | its task `follow` |
| `webhook.cluster.ClusterVersion` | what API server and nodes can do | its task `follow` |
| `webhook.missed.MissedPods` | which pods were found without their sidecar last | its task `follow` |
| `webhook.evictions.Evictions` | when a pod of each owner was evicted last | the task of `MissedPods` |
| `webhook.reviewing.Events` | Events to be written, and which were told lately | reviews, `MissedPods`; `deliver` |
| `webhook.server.Capacity` | reviews at work, bytes of their bodies | each review, for as long as it takes |
| `webhook.server.Server` | whether it drains, how many reviews were cut off | `Service`; a cancelled review |
| `webhook.metrics.Metrics` | counters and gauges | whoever counts |
| `webhook.connections.Listener` | its socket, open connections, whether it closes | `Service`; the event loop |
| `webhook.connections.Connection` | its transport, whether it is busy, since when | the event loop |
| `webhook.service.Service` | the ports it listens on | its own start |
| `certificates.serving_certificate.ServingCertificate` | the pair in service | its supplier's rounds |
| `certificates.serving_certificate.Supplier` | the last trouble, in what it supplies | its task `run` |
| `certificates.certificate_controller.CertificateController` | webhook configurations as last read | its task `run` |
| `certificates.files.CertificateFiles` | that nothing is missing, likewise | its task `run` |
| `certificates.rotation.Sightings` | since when each CA has been trusted | the controller's rounds |
"""

__version__ = "0.1.0"
