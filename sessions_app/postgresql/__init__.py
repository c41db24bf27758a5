"""The PostgreSQL backend: Django's, with the time limit for locks of `base.py`."""
