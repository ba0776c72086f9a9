"""train_loop/launch"""
