"""Around the scores: declarations of metrics, baselines, and intervals over test rows."""
