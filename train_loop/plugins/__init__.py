"""Components of a user's own: the function that ``FILE.py:FUNCTION`` names, and what its code raises."""
