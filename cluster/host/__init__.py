"""cluster/host"""
