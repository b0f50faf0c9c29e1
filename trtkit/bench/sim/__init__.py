"""A model of engines that the very code of the proxy's admission drives, faster than time by orders of magnitude."""
