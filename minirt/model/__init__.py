"""The model: configuration, decoder, paged attention, loading and sampling."""
