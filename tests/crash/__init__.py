"""Processes killed, paused and stopped between two named steps of their work, and what is then found in the store."""
