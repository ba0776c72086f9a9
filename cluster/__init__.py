"""What the cluster grants. Standard library only: login nodes have neither torch nor Ray."""
