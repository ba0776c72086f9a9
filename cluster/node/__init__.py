"""cluster/node"""
