"""The server for all other requests: aiohttp's, with limits and pass-through."""
