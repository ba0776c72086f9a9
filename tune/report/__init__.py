"""The report of one study or several: one HTML file that needs no network, and its figures."""
