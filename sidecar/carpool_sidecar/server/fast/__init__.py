"""The server for plain predict requests: its own HTTP/1.1 on httptools."""
