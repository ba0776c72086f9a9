"""What a search tries next: samplers. No Ray here."""
