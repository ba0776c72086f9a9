"""cluster/host/site"""
