"""train_loop/data/loading"""
