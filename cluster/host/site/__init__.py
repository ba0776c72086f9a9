"""Reads the profile of a site and its quota."""
