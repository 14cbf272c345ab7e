"""Any protocol with a list in the request and a list in the answer, told by a table of rules (`--lists`)."""
