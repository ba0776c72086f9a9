"""Decodes, crops, resizes and augments images."""
