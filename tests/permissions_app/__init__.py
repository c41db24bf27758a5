"""Tests of who may do what; the tree mirrors `permissions_app`."""
