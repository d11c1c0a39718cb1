"""Many runs: suites (runs x measures -> one result table), their executors, and the demo."""
