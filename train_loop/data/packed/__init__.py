"""Reads a packed set, and copies it to the nodes."""
