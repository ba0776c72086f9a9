"""cluster/submission"""
