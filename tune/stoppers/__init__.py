"""Which trials a search pauses, stops and continues. No Ray here."""
