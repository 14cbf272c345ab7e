"""What drives the scheduler: timers and event loops."""
