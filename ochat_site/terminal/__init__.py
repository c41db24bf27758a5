"""The terminal client: what `manage.py chat` shows and takes.

Owns: words and keys. Does not own: the protocol (`ochat_client`). Knows no Django and no store: it may run far from the
server.
"""
