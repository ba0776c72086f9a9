"""train_loop/loop"""
