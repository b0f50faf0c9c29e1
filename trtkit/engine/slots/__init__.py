"""Runs a graph whose batch rows are slots: a scheduler, and executors that know how to run the graph."""
