"""tune/watch"""
