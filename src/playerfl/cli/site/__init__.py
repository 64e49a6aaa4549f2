"""`playerfl flower site` and the commands of a site's administrator: jobs, approve, refuse, stop, audit."""
