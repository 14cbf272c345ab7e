"""The batching core: no I/O, no clock of its own, no event loop.

Rules of this package: standard library only, never asyncio, sockets, time or logging. Every method is synchronous and
returns the I/O still to do as effects; time is a callable given to the constructor. Start with `scheduler.Scheduler`.
"""
