"""The steps of a load in their order: begin, decide, commit, visible."""
