"""The study's folder: journal, tables, ledger, provenance, retries."""
