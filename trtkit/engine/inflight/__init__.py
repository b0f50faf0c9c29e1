"""In-flight batching as its callers see it, whatever runs the batch: requests in, tokens out."""
