"""Batch scripts that were queued by earlier versions look for this file; then they run ``python -m cluster.job``.

Python takes the folder ``job`` for that, not this file.
"""
