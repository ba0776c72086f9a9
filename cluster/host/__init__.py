"""What every floor may use: the allocation, leases, private folders, small files, Slurm's commands."""
