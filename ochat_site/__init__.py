"""The edge: transports, RPC, dialects, capability packs, console, settings and wiring."""
