"""``make matrix``: the versions that docs/compatibility.md promises, each in environments of its own."""
