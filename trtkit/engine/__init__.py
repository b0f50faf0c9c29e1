"""Back ends, and the store of what they made: manifests, content keys, atomic publication."""
