"""Images: packing (``packing/``), reading (``packed/``, ``sets/``), loading (``loading/``, ``pixels/``).

Which images a run sees is decided in ``sampling.py``; ``catalogue.py`` describes and opens a data set.
"""
