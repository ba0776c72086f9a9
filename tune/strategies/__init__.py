"""What a search tries next, and which trials it pauses, stops and continues. No Ray here."""
