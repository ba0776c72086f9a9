"""``bigbatch pack`` and ``bigbatch fetch``: images of any source become a few Arrow files."""
