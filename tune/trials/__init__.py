"""tune/trials"""
