"""train_loop/host"""
