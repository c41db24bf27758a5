"""The kernel: durable sessions, their event log, history, receipts, catalog, blobs and the agent runtime."""
