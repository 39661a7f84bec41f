"""The user interface in Jupyter: magics, approval cards, rendering, traces, and a kernel."""
