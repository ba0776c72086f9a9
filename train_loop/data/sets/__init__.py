"""The kinds of data: digits, image folders, a subset of them."""
