"""Calls on the wire, for every dialect: envelopes, methods, dispatch, connections, paging."""
