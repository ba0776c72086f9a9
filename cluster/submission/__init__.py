"""Checks a request against the site, writes the batch script, lists and cancels jobs."""
