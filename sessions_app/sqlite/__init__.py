"""The SQLite backend: Django's, with the store lock of `base.py`."""
