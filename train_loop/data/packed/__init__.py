"""train_loop/data/packed"""
