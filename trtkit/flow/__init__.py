"""Whole jobs, each a walk through the rooms from left to right: build, verify, up."""
