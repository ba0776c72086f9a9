"""A full run, with or without Ray Train; the range test; the profile. Only this wing of the floor imports Ray."""
