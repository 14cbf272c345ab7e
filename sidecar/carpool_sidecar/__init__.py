"""The batching sidecar: merges concurrent predict requests (v1, v2, gRPC, lists) into one call to the predictor.

All runs in one event loop, in one thread. State of the data path, and who writes it; a scheduler's state is listed in
`carpool.scheduling.scheduler.STATE`, and `carpool.runtime.driver.Driver` has the batches that are out and one timer.
The scheduler's `ledger` counts bytes and requests at work, for all servers;
histograms are kept as `carpool.measures` does.

| class | state | written by |
|---|---|---|
| `config.Settings` | the largest batch, and whether to batch at all | `--from-probe`, as they are made |
| `drain.Lifecycle` | phase and end of the shutdown, when a request last came | `check_open`, its task `drain` |
| `metrics.Count` | one number of `/metrics` | whoever counts |
| `metrics.Counter` | the numbers of a counter, by its labels | whoever counts |
| `metrics.EventLoopLag` | its timer | the timer |
| `turns.Turns` | who has work to do on a large message | all servers; answers; the event loop |
| `turns.Work` | steps that were started, until their outcome is told | its turns; `cancel` |
| `app.wiring.Sidecar` | settings in force, servers, tasks | `start`, `apply`, `stop` |
| `app.wiring.Upstreams` | the model registries | its own start |
| `batching.routes.Lists` | the routes of the paths of `--lists` | the first request to each |
| `recording.ring.Ring` | the latest blocks | `batching.executor.Observer`; `app.wiring.Sidecar` |
| `recording.file.Recorder` | the file of `--record`, what waits to be written | the ring; its thread and timer |
| `recording.file._Thread` | the calls that are not done yet | `Recorder` |
| `batching.executor.Observer` | its counters | `driver.Driver` |
| `batching.model_registry.Model` | what the predictor told last, when to ask again | answers to questions |
| `batching.model_registry.ModelRegistry` | models, unknown names, questions that are out | requests; answers |
| `batching.model_registry.Waiting` | the callback of one request, until it is told | an answer; a caller who leaves |
| `live.event_stream.EventStream` | viewers, and while there are some a timer and a recorder | viewers; the timer |
| `live.event_stream.Viewer` | the message that it should get next | the timer; its own reading |
| `live.recorder.Recorder` | what will be told of batches, and the latest that were | `driver.Driver`; the timer |
| `live.snapshots.Snapshots` | the counts of the last ten seconds | the timer of the stream |
| `server.http1.requests.Predictions` | what the answers of the latest batch begin with | each answer |
| `server.admin.Admin` | the shutdown that was asked for, `carpool_ready` | `/drain`, `/readyz` |
| `server.admin_clients.Clients` | connections of the admin port | its listener; requests; its timer |
| `server.admin_clients.DrainWaits` | who waits for the end of a drain | `/drained` |
| `server.unread.Watch` | all connections of its ports | their listeners; its timer |
| `server.unread.Progress` | since when a client has taken nothing, the most it took at once | `Watch` |
| `server.http1.server.Server` | its connections, what listens | the event loop; `close` |
| `server.listening.Listener` | connections that are being made, how many had asked | the event loop; `close` |
| `server.listening.ConnectionLimit` | how many clients are connected | all three servers |
| `server.http1.connection.Connection` | bytes not yet understood, the request that has it | the transport; answers |
| `server.http1.requests.Answers` | requests without an answer, what a client has not taken | its connection; answers |
| `server.http1.bodies.Parts` | what came of one body | its connection; its exchange |
| `server.http1.bodies.PartialBody` | how much of one is missing | its connection |
| `server.http1.heads.HeadTemplate` | the latest head that came twice | heads that are compared with it |
| `server.http1.heads.Reader` | what heads meant that came lately | each head that is new |
| `server.http1.messages.Fields` | fields of the head that is being read | the parser |
| `server.http1.messages._Head` | the rest of it | the parser |
| `server.http1.messages.Body` | how much of a body is missing | its exchange |
| `server.http1.messages.ChunkedBody` | where in a body in chunks it is | its exchange |
| `server.http1.exchange.Exchange` | who answers a request, and how far that is | its connection; whoever answers |
| `server.http1.handler.Handler` | what heads said that came lately | each head that is new |
| `server.http1.relay.Relays` | open tunnels, whether it is closed | relays; `close_tunnels` |
| `server.http1.relay.Relay` | a request and its answer, as far as they are not passed on | both connections |
| `server.http1.tunnel.Tunnel` | the open tunnels, of which it is one | its sides |
| `server.http1.tunnel.Side` | what still comes from one side of a tunnel | its transport |
| `server.http1.requests.PlainRequests` | when an answer was last made, how many came | requests; answers |
| `server.grpc.service.GrpcService` | trailers of the latest batch, what its call was tagged with | answers; calls |
| `server.grpc.service.InferCall` | the message, the one thing that the call waits for | its stream; answers |
| `server.grpc.heads.HeadReader` | heads by their fields | each call |
| `server.grpc.arrivals.Inflation` | how far a message is inflated | the turns of its arrival |
| `server.grpc.arrivals.Unframer` | the incomplete message of a stream | each piece that comes |
| `server.grpc.arrivals.Arrival` | the messages of a call that are not taken yet | its stream; its turns |
| `server.grpc.arrivals.MessageTimeouts` | calls whose message is incomplete | calls; its timer |
| `server.grpc.passthrough.Passthrough` | tasks of the calls that are passed through | each call |
| `server.grpc.passthrough.PassedCall` | its task, how far the answer is | its stream, its task |
| `server.grpc.passthrough.UnaryCall` | the message, until it is passed on | its task |
| `server.grpc.passthrough.StreamingCall` | messages of the caller that are not passed on yet | its stream, its task |
| `server.grpc.read_slots.ReadSlots` | who reads an answer, who waits to | calls that are passed through; its timer |
| `server.grpc.read_slots.ConnectionSlots` | the slots of each connection | calls that are passed through |
| `server.http2.server.Server` | its clients, whether it leaves | the event loop; `goaway`, `close` |
| `server.http2.server.ServerProtocol` | whether it reads, writes, is lost | the transport; rounds of `Server` |
| `server.http2.connection.Connection` | streams, and what the client may still do | each frame; handlers |
| `server.http2.server_stream.ServerStream` | how far request and answer of a stream are | its connection; its handler |
| `server.http2.send_queue.SendQueue` | what a stream has to send | its handler |
| `server.http2.send_queue.Sender` | what a connection has to send, and may | handlers; the client's frames |
| `server.http2.frames.FrameReader` | the incomplete frame or header block | each piece that comes |
| `server.http2.headers.Decoder` | the table of header fields (RFC 7541) | each header block |
| `server.http2.headers._Steps` | steps of the Huffman code that were computed | each header block |
| `server.http2.limits.TokenBucket` | how often a client may still do something | its frames |
| `server.http2.limits.ReceiveWindow` | how much a client may still send | its data; handlers |
| `server.http2.limits.Turns` | connections that wait for their turn | the event loop |
| `upstream.predictor.HttpPredictor` | batches that are out | `post`; the predictor's answers; its timer |
| `upstream.predictor.Post` | one batch: its answer, and its reply until that was called | `cancel`; its connection |
| `upstream.predictor.Pool` | connections, which are free, which are being made | requests; its timer |
| `upstream.connection.Connection` | who waits for the answer, what is unsent | requests; the transport; `Pool` |
| `upstream.connection.AnswerReader` | the answer that is arriving | each piece that comes |
| `upstream.connection.LenientReader` | the reason phrase of that | its parser |
| `upstream.grpc_predictor.GrpcPredictor` | batches that are out | `post`; the predictor's answers |
| `upstream.grpc_predictor.PostedCall` | one batch: its reply, until called | `cancel`; the predictor's answer |
| `upstream.readiness.Readiness` | the latest result, the check that runs | `/readyz`, probes |
| `protocols.v2_grpc.messages.Reader` | what messages said beside their tensors | each that is new |
| `protocols.v2_grpc.messages.BatchSignature` | what stands in front of answers' tensors, by rows | each answer |
| `protocols.v2_grpc.outlines.Outlines` | what the latest requests said beside their tensors | each that is new |
| `caches.Cache` | what was understood of messages, and how much that is | each message that is new |
| `protocols.form_scan._Scan` | the form of one text so far | its reader |
| `protocols.incremental_scan.IncrementalScan` | rows found in a body so far, and their form | each piece that comes |
| `protocols.json_rows.PartedText` | its parts, or the whole they were put together to | who needs the whole |
| `protocols.v1.RequestScan` | how a body began whose list is scanned | each piece that comes |
| `protocols.json_rows.Spans` | a view of its text | who asks for the first row |
| `protocols.lists.answers.Result` | finished answers, and for which form | each caller's answer |
| `protocols.lists.codec.Codec` | the latest templates and outlines, keys that are not batched | each request; answers |
| `protocols.lists.counts.Counts` | the counts of one answer, while it is read | its reader |
| `protocols.lists.codec.Payload` | what its rows take of a call, once that was asked | who parsed it; the scheduler |
| `protocols.lists.codec.Template` | the batch keys that were asked for | each request |
| `protocols.lists.places.Text` | the members of objects that were looked into | whoever looks |
| `protocols.tensors_from_pairs.front.Codec` | the codecs for some of its rules | a path is first asked for |
| `protocols.tensors_from_v1.codec.Codec` | a model's reader, whether its rows are uneven | each request; answers |
| `protocols.v2_http.codec.Payload` | how its body is cut | the first cut |
| `protocols.v2_http.json_bodies.BodySplitter` | the template that was last used | each body |
| `protocols.v2_http.cuts.Column` | the rows of an answer, converted | each caller's answer |
| `protocols.v2_http.answers.Result` | what stands around the data of answers | each caller's answer |
"""

import carpool
from carpool import compiled

__version__ = "0.1.0"
__all__ = ["__version__"]

compiled.choose(__path__, beside=carpool.__path__)


def build() -> str:
    """Whether the hot path runs `compiled` or as `python`; `partly compiled` if that differs by distribution."""
    return compiled.running("carpool.scheduling.scheduler", "carpool_sidecar.server.http1.connection")
