"""How the sidecar gets between callers and app: five ways, none of which touches a Service or needs a capability.

Each way plans (or refuses with a fix), applies its plan to a draft, and reverts it by the status; `choice` picks one.
"""
