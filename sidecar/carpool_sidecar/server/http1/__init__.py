"""The server of the data port: its own HTTP/1.1, with llhttp (httptools) for heads that do not repeat."""
