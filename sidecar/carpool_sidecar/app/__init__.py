"""The program `carpool-sidecar`: its command line, the serving process, and the wiring of all parts."""
