"""How the sidecar gets between callers and app: five ways, none of which touches a Service or needs a capability.

Each way plans, or refuses with a fix; `choice` picks one. What moves of the app's ports is data of the plan and of the
status: `references` makes it so and undoes it, and a way itself does only what a proxy in front of the app needs.
"""
