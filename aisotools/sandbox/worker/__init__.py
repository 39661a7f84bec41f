"""What runs inside a worker: its main loop, its IPython shell, its output, its forks."""
