"""What scores are measured by and against: declarations of metrics, baselines, and intervals over test rows."""
