"""train_loop/model"""
