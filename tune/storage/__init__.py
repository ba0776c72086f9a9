"""The study's folder: journal, database, description, tables, checkpoints, drivers."""
