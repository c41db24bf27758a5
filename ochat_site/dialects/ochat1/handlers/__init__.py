"""The handlers of the methods, by family. Each is named like its method, with underscores for dots."""
