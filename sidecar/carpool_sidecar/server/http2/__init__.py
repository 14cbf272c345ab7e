"""An HTTP/2 server made for gRPC: cleartext, prior knowledge, many small calls on few connections."""
