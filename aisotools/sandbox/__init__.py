"""The sandbox: a confined worker, and what starts, drives and stops it."""
