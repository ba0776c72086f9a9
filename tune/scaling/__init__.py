"""How far a configuration scales: the same training with more and more workers, and a model of what lies beyond."""
