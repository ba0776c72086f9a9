"""train_loop/data/sets"""
