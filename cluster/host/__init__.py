"""What every floor may ask of Slurm and of the node: the allocation, leases, addresses, Slurm's commands."""
