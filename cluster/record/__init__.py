"""What a job writes about itself, and how far its study is."""
