"""The whole system: real processes under load, kills and hostile clients, seen through the typed client."""
