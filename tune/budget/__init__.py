"""What a search has used and may use: ledger, pace, what is kept back."""
