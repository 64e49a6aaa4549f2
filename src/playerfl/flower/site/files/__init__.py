"""A site's files: the audit log, the privacy budget, and the folder of each job."""
