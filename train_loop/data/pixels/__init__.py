"""train_loop/data/pixels"""
