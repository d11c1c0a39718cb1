"""Running a decoder: its state on disk, choosing tokens, generating text."""
