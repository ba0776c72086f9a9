"""tune/study"""
