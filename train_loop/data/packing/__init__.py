"""train_loop/data/packing"""
