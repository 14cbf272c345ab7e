"""Bytes to core values and back, without sockets: one module for each protocol."""
