"""cluster/doctor"""
