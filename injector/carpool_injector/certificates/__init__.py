"""The webhook's TLS: certificates made here or mounted as files, rotated under a running server without a gap.

`pki` reads, issues and verifies, `rotation` decides, both pure. `serving_certificate` holds the server's
`ssl.SSLContext`; `certificate_controller` (self-managed) and `files` (cert-manager, an existing Secret) supply it.
"""
