"""What the benchmarks share: how one is described, measured, judged and shown."""
