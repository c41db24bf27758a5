"""The protocol's own examples, schema and method facts, and the tests that hold the code to them."""
