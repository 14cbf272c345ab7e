"""How the sidecar gets between callers and app: five ways, none of which touches a Service or needs a capability.

Each way is a module that plans (or refuses, with the fix), applies its plan to a draft, and reverts it by the status.
"""
