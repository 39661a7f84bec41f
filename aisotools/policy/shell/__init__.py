"""What a shell command does, judged from its parse and a table of programs."""
