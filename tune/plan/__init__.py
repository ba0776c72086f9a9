"""tune/plan"""
