"""cluster/record"""
