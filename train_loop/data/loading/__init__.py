"""Loader processes, their shared memory, reading ahead, copies to the device."""
