"""The program: settings, wiring, the process and its command line."""
