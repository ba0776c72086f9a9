"""What every floor may use: where the folders lie, small files, waits, processes, words of command lines.

Standard library only; it imports nothing of the floors above it.
"""
