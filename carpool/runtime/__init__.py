"""What drives the scheduler: timers and event loops. Standard library only, and no word of what a batch carries.

All times are seconds of one clock, `time.monotonic`, which asyncio's loops count by as well. It is handed in where
tests hand in another.
"""
