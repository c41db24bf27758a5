"""The protocol on the standard streams of a process: an embedded host, or a gateway to a server (behaviour 1.4)."""
