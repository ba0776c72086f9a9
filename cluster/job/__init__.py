"""cluster/job"""
