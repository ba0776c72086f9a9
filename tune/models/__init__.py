"""What strategies know: learning curves, coordinates of a space, other studies. No Ray here."""
