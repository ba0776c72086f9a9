"""One node's part of the job: starts Ray, its ports, token, heartbeats."""
