"""The webhook's TLS: certificates made here or mounted as files, rotated under a running server without a gap.

`authority` issues and verifies, `rotation` decides, both pure. `context` holds the server's `ssl.SSLContext`, `keeper`
(self-managed) and `files` (cert-manager, an existing Secret) keep it supplied, `publication` tells the API server whom
to trust, `facts` is what metrics and readiness may know.
"""
