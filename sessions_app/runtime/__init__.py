"""The agent runtime: what happens between an accepted message and its terminal transaction.

Owns the turn loop, call rows, the ports for model, tools and gate, the model adapters, claim and recovery.
Does not own the write path (`sessions_app.ledger`), what a tool is (`ochat_site.packs`) or who may call one
(`permissions_app`).
"""
